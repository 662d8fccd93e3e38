// From what was drawn or dropped to the pixels that a net was trained on.

/** Mean over the rectangle of `source` (side x side, row by row) under each of `across` x `down` target pixels. */
export function shrink(source, side, box, across, down) {
  const target = new Float32Array(across * down);
  const [dx, dy] = [box.width / across, box.height / down];
  for (let y = 0; y < down; y++)
    for (let x = 0; x < across; x++)
      target[y * across + x] = mean(source, side, box.x + x * dx, box.y + y * dy, dx, dy);
  return target;
}

function mean(source, side, left, top, width, height) {
  let sum = 0;
  for (let y = Math.floor(top); y < Math.min(side, top + height); y++) {
    const rows = Math.min(y + 1, top + height) - Math.max(y, top);
    for (let x = Math.floor(left); x < Math.min(side, left + width); x++)
      sum += rows * (Math.min(x + 1, left + width) - Math.max(x, left)) * source[y * side + x];
  }
  return sum / (width * height);
}

/** The rectangle that holds all ink, or null. */
export function bounds(ink, side) {
  let [left, top, right, bottom] = [side, side, -1, -1];
  for (let i = 0; i < ink.length; i++) {
    if (ink[i] <= 0.05) continue;
    const [x, y] = [i % side, Math.floor(i / side)];
    left = Math.min(left, x), right = Math.max(right, x);
    top = Math.min(top, y), bottom = Math.max(bottom, y);
  }
  return right < 0 ? null : { x: left, y: top, width: right - left + 1, height: bottom - top + 1 };
}

/** A drawing (ink from 0 to 1) as MNIST has them: 20 pixels long, its centre of mass in the centre of 28 x 28. */
export function digit(ink, side) {
  const box = bounds(ink, side);
  if (!box) return null;
  const long = Math.max(box.width, box.height);
  const [w, h] = [box.width, box.height].map((q) => Math.max(1, Math.round((20 * q) / long)));
  const small = shrink(ink, side, box, w, h);
  let [sum, x, y] = [0, 0, 0];
  small.forEach((q, i) => (sum += q, x += q * ((i % w) + 0.5), y += q * (Math.floor(i / w) + 0.5)));
  const [left, top] = [14 - Math.floor(x / sum), 14 - Math.floor(y / sum)]; // as measured on MNIST: from 14 to below 15
  const pixels = new Uint8Array(28 * 28);
  for (let j = Math.max(0, -top); j < Math.min(h, 28 - top); j++)
    for (let i = Math.max(0, -left); i < Math.min(w, 28 - left); i++)
      pixels[(j + top) * 28 + i + left] = Math.round(255 * Math.min(1, small[j * w + i]));
  return pixels;
}

/** The middle square of RGBA data as 3 x 32 x 32 bytes. */
export function picture(rgba, side) {
  const whole = { x: 0, y: 0, width: side, height: side };
  const pixels = new Uint8Array(3 * 1024);
  for (let c = 0; c < 3; c++) {
    const plane = Float32Array.from({ length: side * side }, (_, i) => rgba[4 * i + c]);
    shrink(plane, side, whole, 32, 32).forEach((q, i) => (pixels[c * 1024 + i] = Math.round(q)));
  }
  return pixels;
}

/** Bytes as a net takes them: from 0 to 1, less the mean of its training images, by their deviation. */
export function normalised(pixels, mean, std) {
  const plane = pixels.length / mean.length;
  return Float32Array.from(pixels, (q, i) => {
    const c = Math.floor(i / plane);
    return (q / 255 - mean[c]) / std[c];
  });
}
