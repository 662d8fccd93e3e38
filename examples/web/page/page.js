// The page: two nets, one input each, K, and what is seen of it.

const { digits, pictures } = JSON.parse(document.getElementById("nets").textContent);
const $ = (id) => document.getElementById(id);
const nets = {};
// the shown net; the bytes and the floats that it got; its states; the step that is shown, null for the last
const now = { kind: "digits", pixels: null, input: null, states: [], answer: null, step: null, channel: 0 };
const kept = { digits: null, pictures: null };
let pad;

const spec = () => ({ digits, pictures })[now.kind];
const cells = () => spec().shape[1];
const K = () => Number($("steps").value);
const shownStep = () => Math.min(now.step ?? K(), K());

function plane(field) {
  const size = cells() ** 2;
  return field.subarray(now.channel * size, (now.channel + 1) * size);
}

// ---------------------------------------------------------------- computing

/** Takes bytes as the input of the shown net; null for none. */
function take(pixels) {
  now.pixels = kept[now.kind] = pixels;
  compute();
}

function compute() {
  const net = nets[now.kind];
  now.input = now.pixels && normalised(now.pixels, spec().mean, spec().std);
  if (now.input) {
    const runs = Array.from({ length: K() }, (_, k) => net.run(now.input, k + 1));
    now.answer = runs[runs.length - 1];
    now.states = [now.answer.h0, ...runs.map((run) => run.hK)];
  } else Object.assign(now, { answer: null, states: [] });
  showAnswer();
  showFields();
  askForTime();
}

let clock;
function askForTime() {
  clearTimeout(clock);
  clock = setTimeout(() => {
    if (!now.input) return;
    const ms = nets[now.kind].milliseconds(K());
    $("ms").textContent = ms < 0.0995 ? ms.toPrecision(1) : ms.toPrecision(2);
    $("timed").hidden = false;
  }, 120);
}

// ---------------------------------------------------------------- the answer

function percent(chance) {
  return chance < 1 && chance >= 0.9995 ? "> 99.9 %" : `${(100 * chance).toFixed(1)} %`;
}

function showAnswer() {
  const chances = now.answer ? softmax(now.answer.logits) : spec().classes.map(() => 0);
  const best = now.answer ? chances.indexOf(Math.max(...chances)) : -1;
  $("best").textContent = best < 0 ? "–" : spec().classes[best];
  $("sure").textContent = best < 0 ? "nothing to read yet" : `${percent(chances[best])} sure`;
  [...$("bars").children].forEach((row, i) => {
    row.classList.toggle("best", i === best);
    row.querySelector(".fill").style.transform = `scaleX(${chances[i]})`;
    row.querySelector(".share").textContent = now.answer ? percent(chances[i]) : "";
  });
  $("timed").hidden = !now.answer;
}

/** Says the answer once, when a stroke or a choice is done. */
function speak() {
  $("said").textContent = now.answer ? `${$("best").textContent}, ${$("sure").textContent}, K = ${K()}` : "Empty";
}

function makeBars() {
  $("bars").replaceChildren(...spec().classes.map((name) => {
    const row = document.createElement("li");
    row.innerHTML = '<span class="name"></span><span class="track"><span class="fill"></span></span><span class="share"></span>';
    row.firstChild.textContent = name;
    return row;
  }));
}

// ---------------------------------------------------------------- the fields

function largest() {
  let most = 0;
  for (const state of now.states) for (const q of plane(state)) most = Math.max(most, Math.abs(q));
  return most || 1;
}

function showFields() {
  makeFrames();
  drawStep();
}

function drawStep() {
  const k = shownStep();
  const most = now.answer && largest();
  const on = (id) => now.answer && $(id).checked;
  drawScene($("scene"), {
    cells: cells(), most,
    image: on("see-image") ? now.pixels : null,
    state: on("see-state") ? plane(now.states[k]) : null,
    u: on("see-velocity") ? plane(now.answer.u) : null,
    v: on("see-velocity") ? plane(now.answer.v) : null,
  });
  $("step-name").innerHTML = now.answer ? `h<sup>${k}</sup>` : "";
  const time = (k * spec().dt).toFixed(1);
  $("step-time").textContent = now.answer ? `after ${k} of ${K()} steps, t = ${time}` : "";
  $("still").hidden = !now.answer || plane(now.answer.u).some(Boolean) || plane(now.answer.v).some(Boolean);
  $("scene").setAttribute("aria-label", now.answer
    ? `State after ${k} of ${K()} steps over the image, with the velocities as arrows` : "No state yet");
  $("least").textContent = now.answer ? (-most).toFixed(1) : "";
  $("most").textContent = now.answer ? most.toFixed(1) : "";
  [...$("frames").children].forEach((frame, i) => {
    frame.setAttribute("aria-checked", i === k);
    frame.tabIndex = i === k ? 0 : -1;
    if (now.answer) drawScene(frame.firstChild, { cells: cells(), state: plane(now.states[i]), most });
    else frame.firstChild.getContext("2d").clearRect(0, 0, 999, 999);
  });
}

function makeFrames() {
  const frames = $("frames");
  while (frames.children.length > K() + 1) frames.lastChild.remove();
  while (frames.children.length < K() + 1) {
    const k = frames.children.length;
    const frame = document.createElement("button");
    Object.assign(frame, { type: "button", innerHTML: `<canvas width="56" height="56"></canvas><span>${k}</span>` });
    frame.setAttribute("role", "radio");
    frame.setAttribute("aria-label", `State after ${k} steps`);
    frame.addEventListener("click", () => choose(k));
    frames.append(frame);
  }
}

function choose(k) {
  stop();
  now.step = k;
  drawStep();
  $("frames").children[k].focus();
}

function walk(event) {
  const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!by) return;
  event.preventDefault();
  choose((shownStep() + by + K() + 1) % (K() + 1));
}

let playing;
function play() {
  if (playing) return stop();
  now.step = 0;
  $("play").setAttribute("aria-pressed", true);
  drawStep();
  playing = setInterval(() => {
    if (now.step >= K()) return stop();
    now.step++;
    drawStep();
  }, 350);
}

function stop() {
  clearInterval(playing);
  playing = null;
  $("play").setAttribute("aria-pressed", false);
}

// ---------------------------------------------------------------- pictures

async function openPicture(file) {
  $("trouble").textContent = "";
  if (!file) return;
  try {
    const bitmap = await createImageBitmap(file);
    const side = Math.min(bitmap.width, bitmap.height);
    const square = new OffscreenCanvas(512, 512);
    const pen = square.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.fillStyle = "#fff"; // under pictures with transparent parts
    pen.fillRect(0, 0, 512, 512);
    pen.drawImage(bitmap, (bitmap.width - side) / 2, (bitmap.height - side) / 2, side, side, 0, 0, 512, 512);
    show("pictures");
    usePicture(picture(pen.getImageData(0, 0, 512, 512).data, 512));
    speak();
  } catch {
    $("trouble").textContent = `${file.name || "This"} is no picture that this browser can read. Try a PNG or a JPEG.`;
  }
}

function usePicture(pixels) {
  drawImage($("seen"), pixels, 32);
  stop();
  now.step = null;
  take(pixels);
}

// ---------------------------------------------------------------- wiring

function useDigit(pixels) {
  pad.show(pixels);
  stop();
  now.step = null;
  take(pixels);
}

function makeExamples() {
  const { examples, classes, shape: [, side] } = spec();
  const size = examples.pixels.length / examples.labels.length;
  $("examples").replaceChildren(...examples.labels.map((label, i) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", innerHTML: "<canvas width='64' height='64'></canvas>" });
    button.setAttribute("aria-label", `Example: ${classes[label]}`);
    button.title = classes[label];
    const pixels = examples.pixels.subarray(i * size, (i + 1) * size);
    button.addEventListener("click", () => {
      (now.kind === "digits" ? useDigit : usePicture)(pixels);
      speak();
    });
    requestAnimationFrame(() => drawImage(button.firstChild, pixels, side));
    return button;
  }));
}

function makeChannels() {
  const { channels } = spec();
  $("channels").hidden = channels < 2;
  $("channel").replaceChildren(...Array.from({ length: channels }, (_, c) => new Option(`${c + 1} of ${channels}`, c)));
  now.channel = 0;
}

/** Turns to the digits or to the pictures. */
function show(kind) {
  stop();
  now.kind = kind;
  for (const name of ["digits", "pictures"]) {
    $(`tab-${name}`).setAttribute("aria-selected", name === kind);
    $(`tab-${name}`).tabIndex = name === kind ? 0 : -1;
    $(`input-${name}`).hidden = name !== kind;
  }
  now.step = null;
  $("about").textContent = spec().about;
  makeBars();
  makeChannels();
  makeExamples();
  take(kept[kind]);
  if (kind === "pictures" && now.pixels) drawImage($("seen"), now.pixels, 32);
  if (kind === "digits") pad.draw();
}

function whenDrawn(done) {
  stop();
  now.step = null;
  take(digit(...pad.read()));
  if (done) speak();
}

function wire() {
  let asked = false;
  pad = new Pad($("pad"), (done) => {
    if (done) return whenDrawn(true);
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => (asked = false, now.kind === "digits" && !pad.shown && whenDrawn(false)));
  });
  $("clear").addEventListener("click", () => (pad.clear(), whenDrawn(true)));
  $("steps").addEventListener("input", () => {
    stop();
    now.step = null;
    $("steps-value").textContent = K();
    compute();
  });
  $("steps").addEventListener("change", speak);
  for (const id of ["see-image", "see-state", "see-velocity"]) $(id).addEventListener("change", drawStep);
  $("channel").addEventListener("change", () => (now.channel = Number($("channel").value), drawStep()));
  $("play").addEventListener("click", play);
  $("frames").addEventListener("keydown", walk);
  const names = ["digits", "pictures"];
  for (const name of names) {
    $(`tab-${name}`).addEventListener("click", () => show(name));
    $(`tab-${name}`).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      show(names[1 - names.indexOf(name)]);
      $(`tab-${now.kind}`).focus();
    });
  }
  $("file").addEventListener("change", () => openPicture($("file").files[0]));
  document.addEventListener("paste", (event) => openPicture([...event.clipboardData.files][0]));
  document.addEventListener("dragover", (event) => (event.preventDefault(), document.body.classList.add("dragging")));
  document.addEventListener("dragleave", (event) => event.relatedTarget || document.body.classList.remove("dragging"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    openPicture(event.dataTransfer.files[0]);
  });
  new ResizeObserver(() => (pad.draw(), drawStep(), now.kind === "pictures" && now.pixels && drawImage($("seen"), now.pixels, 32))).observe($("scene"));
}

async function main() {
  try {
    for (const [name, one] of Object.entries({ digits, pictures })) {
      nets[name] = await load(one);
      one.examples.pixels = bytesOf(one.examples.pixels);
      const size = one.examples.pixels.length / one.examples.labels.length;
      kept[name] = one.examples.pixels.subarray(one.first * size, (one.first + 1) * size);
    }
  } catch (error) {
    $("trouble").textContent = `This browser cannot run WebAssembly with SIMD, which the page needs (${error.message}).`;
    return;
  }
  wire();
  drawScale($("scale"));
  pad.show(kept.digits);
  show("digits");
  document.body.dataset.ready = "yes";
}

globalThis.pdecnn = { now, nets }; // for the curious, and for the test
main();
