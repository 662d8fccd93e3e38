// A network in WebAssembly. Its file is the C of `pdecnn export`: run(arena, in, out) and run_k(arena, in, out, K).

const LONG = 8; // ms, against which the clock is fine

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

/** `spec` is what build.py says of a net: prefix, wasm, arena, inputs, sizes of the outputs by name. */
export async function load(spec) {
  const { instance } = await WebAssembly.instantiate(bytesOf(spec.wasm));
  return new Net(spec, instance.exports);
}

class Net {
  constructor(spec, exports) {
    const { memory, __heap_base: heap } = exports;
    this.spec = spec;
    this.call = exports[`${spec.prefix}_run_k`];
    const outputs = Object.values(spec.outputs).reduce((a, b) => a + b);
    this.in = Math.ceil(heap.value / 16) * 16;
    this.out = this.in + 4 * spec.inputs;
    this.arena = Math.ceil((this.out + 4 * outputs) / 16) * 16;
    const missing = this.arena + spec.arena - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / 65536));
    this.values = new Float32Array(memory.buffer);
  }

  /** The outputs by name, for an input of `spec.inputs` floats and K steps. */
  run(input, K) {
    this.values.set(input, this.in / 4);
    this.step(K);
    const found = {};
    let start = this.out / 4;
    for (const [name, size] of Object.entries(this.spec.outputs)) {
      found[name] = this.values.slice(start, start + size);
      start += size;
    }
    return found;
  }

  step(K) {
    if (this.call(this.arena, this.in, this.out, K)) throw new RangeError(`K = ${K} is out of range`);
  }

  /** Milliseconds of one run on the last input: the least of three, for other work on the machine only adds to it. */
  milliseconds(K) {
    return Math.min(...[1, 2, 3].map(() => this.mean(K)));
  }

  mean(K) {
    // clocks of browsers are coarse, so many runs are timed at once
    let runs = 0;
    const start = performance.now();
    let now = start;
    while (now - start < LONG) {
      for (let i = 0; i < 8; i++, runs++) this.step(K);
      now = performance.now();
    }
    return (now - start) / runs;
  }
}

export function softmax(logits) {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (q) => Math.exp(q - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((q) => q / sum);
}
