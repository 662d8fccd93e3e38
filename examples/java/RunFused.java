import com.sun.jna.Function;
import com.sun.jna.Memory;
import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.LongByReference;
import com.sun.jna.ptr.PointerByReference;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * Runs a fused ONNX file of pdecnn in Java: ONNX Runtime and libpdecnn_ort, no Python and no torch.
 *
 * <pre>java -cp jna.jar RunFused.java libonnxruntime.so net.onnx ./libpdecnn_ort.so input.bin 2,1,28,28</pre>
 *
 * It calls the C interface by JNA, so that any build of ONNX Runtime serves. With Microsoft's Java package
 * (com.microsoft.onnxruntime:onnxruntime) the same is `options.registerCustomOpLibrary("./libpdecnn_ort.so")`.
 */
public final class RunFused {
  // places in the table OrtApi, version 1; it is only ever appended to
  private static final int ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10;
  private static final int REGISTER_LIBRARY = 29, INPUT_NAME = 36, OUTPUT_NAME = 37, CREATE_TENSOR = 49;
  private static final int TENSOR_DATA = 51, ELEMENT_COUNT = 64, TYPE_AND_SHAPE = 65, CPU_MEMORY = 69, ALLOCATOR = 78;
  private static final int WARNING = 2, ARENA = 1, DEFAULT_MEMORY = 0, FLOAT = 1;

  private final Pointer table;

  private RunFused(String library) {
    Pointer base = NativeLibrary.getInstance(library).getFunction("OrtGetApiBase").invokePointer(new Object[0]);
    table = Function.getFunction(base.getPointer(0)).invokePointer(new Object[] {1});
  }

  private Function entry(int place) {
    return Function.getFunction(table.getPointer((long) place * Native.POINTER_SIZE));
  }

  /** Calls an entry that returns a status, which is null if all went well. */
  private void call(int place, Object... arguments) {
    Pointer status = entry(place).invokePointer(arguments);
    if (status != null) {
      throw new IllegalStateException(entry(ERROR_MESSAGE).invokePointer(new Object[] {status}).getString(0));
    }
  }

  private Pointer make(int place, Object... arguments) {
    PointerByReference made = new PointerByReference();
    Object[] all = Arrays.copyOf(arguments, arguments.length + 1);
    all[arguments.length] = made;
    call(place, all);
    return made.getValue();
  }

  private static Memory pointers(Pointer... values) {
    Memory memory = new Memory((long) values.length * Native.POINTER_SIZE);
    memory.write(0, values, 0, values.length);
    return memory;
  }

  private float[] run(String model, String operators, Memory input, long[] shape) {
    Pointer env = make(CREATE_ENV, WARNING, "pdecnn");
    Pointer options = make(CREATE_OPTIONS);
    make(REGISTER_LIBRARY, options, operators); // the one line that a fused file asks for
    Pointer session = make(CREATE_SESSION, env, model, options);

    Pointer memory = make(CPU_MEMORY, ARENA, DEFAULT_MEMORY);
    Memory sizes = new Memory(8L * shape.length);
    sizes.write(0, shape, 0, shape.length);
    Pointer x = make(CREATE_TENSOR, memory, input, input.size(), sizes, (long) shape.length, FLOAT);
    Pointer allocator = make(ALLOCATOR);
    Memory inputs = pointers(make(INPUT_NAME, session, 0L, allocator));
    Memory outputs = pointers(make(OUTPUT_NAME, session, 0L, allocator));
    Memory answers = pointers((Pointer) null);
    call(RUN, session, null, inputs, pointers(x), 1L, outputs, 1L, answers);

    Pointer answer = answers.getPointer(0);
    LongByReference count = new LongByReference();
    call(ELEMENT_COUNT, make(TYPE_AND_SHAPE, answer), count);
    return make(TENSOR_DATA, answer).getFloatArray(0, (int) count.getValue());
  }

  private static Memory read(String path, long[] shape) throws IOException {
    byte[] bytes = Files.readAllBytes(Path.of(path));
    long expected = 4 * Arrays.stream(shape).reduce(1, (a, b) -> a * b);
    if (bytes.length != expected) {
      throw new IOException(path + " has " + bytes.length + " bytes, expected " + expected + ".");
    }
    Memory input = new Memory(bytes.length);
    input.write(0, bytes, 0, bytes.length);
    return input;
  }

  public static void main(String[] arguments) {
    if (arguments.length != 5) {
      System.err.println("usage: RunFused LIBONNXRUNTIME MODEL.onnx LIBPDECNN_ORT INPUT.bin N,C,H,W");
      System.exit(2);
    }
    try {
      long[] shape = Arrays.stream(arguments[4].split(",")).mapToLong(Long::parseLong).toArray();
      Memory input = read(arguments[3], shape);
      for (float value : new RunFused(arguments[0]).run(arguments[1], arguments[2], input, shape)) {
        System.out.println(value);
      }
    } catch (IOException | IllegalStateException | UnsatisfiedLinkError error) {
      System.err.println("RunFused: " + error);
      System.exit(1);
    }
  }
}
