// Fields on a canvas: the image, a state over it in two colours (nothing where it is 0), and the velocities as arrows.

const WARM = [232, 93, 4];
const COLD = [37, 99, 235];

function screenOf(canvas) {
  const ratio = Math.max(1, window.devicePixelRatio || 1);
  const side = Math.round((canvas.clientWidth || canvas.width) * ratio);
  if (canvas.width !== side) canvas.width = canvas.height = side;
  return { pen: canvas.getContext("2d"), side, ratio };
}

function stamp(pen, rgba, cells, side, smooth) {
  const small = new OffscreenCanvas(cells, cells);
  small.getContext("2d").putImageData(new ImageData(rgba, cells, cells), 0, 0);
  pen.imageSmoothingEnabled = smooth;
  pen.drawImage(small, 0, 0, side, side);
}

/** Bytes of one or three planes as RGBA. */
export function rgbaOf(pixels, cells) {
  const size = cells * cells;
  const step = pixels.length > size ? size : 0;
  const rgba = new Uint8ClampedArray(4 * size);
  for (let i = 0; i < size; i++) {
    for (let c = 0; c < 3; c++) rgba[4 * i + c] = pixels[i + c * step];
    rgba[4 * i + 3] = 255;
  }
  return rgba;
}

export function drawImage(canvas, pixels, cells, smooth = false) {
  const { pen, side } = screenOf(canvas);
  pen.clearRect(0, 0, side, side);
  stamp(pen, rgbaOf(pixels, cells), cells, side, smooth);
}

function coloured(field, most) {
  const rgba = new Uint8ClampedArray(4 * field.length);
  field.forEach((q, i) => {
    const [r, g, b] = q > 0 ? WARM : COLD;
    rgba.set([r, g, b, 235 * Math.min(1, Math.abs(q) / most) ** 0.8], 4 * i);
  });
  return rgba;
}

function arrow(pen, x, y, dx, dy, head) {
  const length = Math.hypot(dx, dy);
  const [ex, ey] = [dx / length, dy / length];
  const [tipX, tipY] = [x + dx / 2, y + dy / 2];
  pen.moveTo(x - dx / 2, y - dy / 2);
  pen.lineTo(tipX, tipY);
  for (const turn of [-0.6, 0.6]) {
    pen.moveTo(tipX, tipY);
    pen.lineTo(tipX - head * (ex - turn * ey), tipY - head * (ey + turn * ex));
  }
}

/** One arrow for the mean of each 2 x 2 pixels; the fastest is three pixels long. */
function drawVelocities(pen, u, v, cells, side, ratio) {
  const cell = side / cells;
  const four = (q, x, y) => (q[y * cells + x] + q[y * cells + x + 1] + q[(y + 1) * cells + x] + q[(y + 1) * cells + x + 1]) / 4;
  const found = [];
  for (let y = 0; y < cells; y += 2)
    for (let x = 0; x < cells; x += 2) found.push([x, y, four(u, x, y), four(v, x, y)]);
  const fastest = Math.max(...found.map(([, , a, b]) => Math.hypot(a, b))) || 1;
  pen.beginPath();
  for (const [x, y, a, b] of found) {
    const scale = (3 * cell) / fastest;
    const length = scale * Math.hypot(a, b);
    if (length > 3 * ratio) arrow(pen, (x + 1) * cell, (y + 1) * cell, scale * a, scale * b, Math.min(length / 2, 4 * ratio));
  }
  pen.lineCap = pen.lineJoin = "round";
  for (const [colour, width] of [["#fffc", 3.2], ["#111", 1.4]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = width * ratio;
    pen.stroke();
  }
}

/** The image in light greys, so that the colours over it are seen; what is drawn in white becomes dark on light. */
function pale(pixels, cells) {
  const rgba = rgbaOf(pixels, cells);
  const drawn = pixels.length === cells * cells;
  for (let i = 0; i < rgba.length; i += 4) {
    const grey = 0.299 * rgba[i] + 0.587 * rgba[i + 1] + 0.114 * rgba[i + 2];
    rgba.fill(255 - 0.4 * (drawn ? grey : 255 - grey), i, i + 3);
  }
  return rgba;
}

/** `scene`: image (bytes), cells, state, most (what is fully coloured), u, v; what is null is not drawn. */
export function drawScene(canvas, scene) {
  const { pen, side, ratio } = screenOf(canvas);
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, side, side);
  if (scene.image) stamp(pen, pale(scene.image, scene.cells), scene.cells, side, false);
  if (scene.state) stamp(pen, coloured(scene.state, scene.most), scene.cells, side, false);
  if (scene.u) drawVelocities(pen, scene.u, scene.v, scene.cells, side, ratio);
}

/** The colours and their numbers. */
export function drawScale(canvas) {
  const pen = canvas.getContext("2d");
  const width = canvas.width;
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, width, canvas.height);
  const ramp = Float32Array.from({ length: width }, (_, i) => (2 * i) / (width - 1) - 1);
  const row = coloured(ramp, 1);
  for (let x = 0; x < width; x++) {
    pen.fillStyle = `rgb(${row[4 * x]} ${row[4 * x + 1]} ${row[4 * x + 2]} / ${row[4 * x + 3] / 255})`;
    pen.fillRect(x, 0, 1, canvas.height);
  }
}
