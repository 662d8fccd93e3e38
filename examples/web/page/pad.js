// The pad: ink by mouse, touch, pen or keys. On touch screens it takes the gestures; the page scrolls beside it.

const SIDE = 280; // of the drawing, whatever the size on the screen
const STROKE = 22;

export class Pad {
  /** `changed(done)` is called when there is new ink, with true at the end of a stroke. */
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.ink = new OffscreenCanvas(SIDE, SIDE);
    this.pen = this.ink.getContext("2d", { willReadFrequently: true });
    Object.assign(this.pen, { strokeStyle: "#fff", lineWidth: STROKE, lineCap: "round", lineJoin: "round" });
    this.last = null; // where the pointer is while it draws
    this.keys = { x: SIDE / 2, y: SIDE / 4, down: false };
    this.shown = null; // an example in the place of a drawing
    canvas.addEventListener("pointerdown", (e) => this.begin(e));
    canvas.addEventListener("pointermove", (e) => this.follow(e));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => this.end());
    canvas.addEventListener("keydown", (e) => this.key(e));
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => this.draw());
  }

  /** Ink from 0 to 1, and the side of the square. */
  read() {
    const { data } = this.pen.getImageData(0, 0, SIDE, SIDE);
    return [Float32Array.from({ length: SIDE * SIDE }, (_, i) => data[4 * i + 3] / 255), SIDE];
  }

  clear() {
    this.pen.clearRect(0, 0, SIDE, SIDE);
    this.shown = null;
    this.keys.down = false;
    this.draw();
  }

  /** Shows 28 x 28 bytes until something is drawn. */
  show(pixels) {
    this.clear();
    this.shown = pixels;
    this.draw();
  }

  begin(event) {
    if (event.button) return;
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    if (this.shown) this.clear();
    this.last = this.place(event);
    this.line(this.last, this.last);
  }

  follow(event) {
    if (!this.last) return;
    for (const part of event.getCoalescedEvents?.() ?? [event]) {
      const here = this.place(part);
      this.line(this.last, here);
      this.last = here;
    }
  }

  end() {
    if (!this.last) return;
    this.last = null;
    this.changed(true);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: ((event.clientX - box.left) * SIDE) / box.width, y: ((event.clientY - box.top) * SIDE) / box.height };
  }

  line(from, to) {
    this.pen.beginPath();
    this.pen.moveTo(from.x, from.y);
    this.pen.lineTo(to.x, to.y);
    this.pen.stroke();
    this.draw();
    this.changed(false);
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    const { keys } = this;
    if (event.key === " ") {
      if (this.shown) this.clear();
      keys.down = !keys.down;
      if (keys.down) this.line(keys, keys);
      else this.changed(true);
    } else if (move) {
      const [x, y] = [keys.x + 10 * move[0], keys.y + 10 * move[1]].map((q) => Math.min(SIDE - 10, Math.max(10, q)));
      if (keys.down) this.line(keys, { x, y });
      Object.assign(keys, { x, y });
    } else if (["Delete", "Backspace"].includes(event.key)) {
      this.clear();
      this.changed(true);
    } else return;
    event.preventDefault();
    this.byKeys = true;
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const ratio = Math.max(1, window.devicePixelRatio || 1);
    const side = Math.round((canvas.clientWidth || SIDE) * ratio);
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#0b0d12";
    pen.fillRect(0, 0, side, side);
    if (this.shown) {
      const small = new OffscreenCanvas(28, 28);
      const rgba = new Uint8ClampedArray(4 * 784).fill(255);
      this.shown.forEach((q, i) => (rgba[4 * i + 3] = q));
      small.getContext("2d").putImageData(new ImageData(rgba, 28, 28), 0, 0);
      pen.drawImage(small, 0, 0, side, side);
    } else pen.drawImage(this.ink, 0, 0, side, side);
    if (document.activeElement !== canvas || !this.byKeys || this.last) return;
    const [x, y] = [this.keys.x, this.keys.y].map((q) => (q * side) / SIDE);
    pen.strokeStyle = this.keys.down ? "#fb923c" : "#7dd3fc";
    pen.lineWidth = 2 * ratio;
    pen.beginPath();
    pen.arc(x, y, (STROKE / 2 / SIDE) * side, 0, 7);
    pen.stroke();
  }
}
