"use strict";
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const VIEWS = {
  encoder: { label: "encoder", rows: "src", columns: "src", left: "source word", right: "looks at source words" },
  decoder: { label: "decoder", rows: "tgt", columns: "inputs", left: "word being written", right: "looks at words before it" },
  cross: { label: "cross", rows: "tgt", columns: "src", left: "word being written", right: "looks at source words" },
};
const LEAST = 0.0005;  // smaller weights, which round to 0.000, are not shown
const MEAN = "mean";
const SVG = "http://www.w3.org/2000/svg";

const element = (id) => document.getElementById(id);
const sentences = JSON.parse(element("data").textContent);
const unpacked = new Map();
const state = { sentence: 0, view: "cross", layer: 0, head: MEAN, pinned: null };

// All weights of the current sentence for one kind of attention; they are unpacked only once.
function weightsOf(view) {
  const key = state.sentence + view;
  if (!unpacked.has(key)) {
    const text = sentences[state.sentence][view];
    const value = new Map([...DIGITS].map((digit, index) => [digit, index]));
    const weights = new Float32Array(text.length / 2);
    for (let i = 0; i < weights.length; i++) weights[i] = (value.get(text[2 * i]) * 64 + value.get(text[2 * i + 1])) / 1000;
    unpacked.set(key, weights);
  }
  return unpacked.get(key);
}

const words = (side) => sentences[state.sentence][VIEWS[state.view][side]];
const layerCount = () => sentences[state.sentence].layers[state.view];
const headCount = () => sentences[state.sentence].heads[state.view];

// The weights of one head, or the mean of a layer's heads, row by row.
function matrix(layer, head) {
  const size = words("rows").length * words("columns").length;
  const heads = headCount();
  const all = weightsOf(state.view);
  const of = (index) => all.subarray((layer * heads + index) * size, (layer * heads + index + 1) * size);
  if (head !== MEAN) return of(head);
  const mean = new Float32Array(size);
  for (let index = 0; index < heads; index++) of(index).forEach((weight, i) => { mean[i] += weight / heads; });
  return mean;
}

// ---------------------------------------------------------------------------------------------------------- controls

function radios(place, name, entries, chosen, choose) {
  for (const old of [...place.querySelectorAll("label")]) old.remove();
  for (const [value, text] of entries) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    Object.assign(input, { type: "radio", name, value: String(value), checked: value === chosen });
    input.addEventListener("change", () => choose(value));
    label.append(input, text);
    place.append(label);
  }
}

const numbers = (count) => Array.from({ length: count }, (_, index) => [index, String(index + 1)]);

function showControls() {
  radios(element("views"), "view", Object.entries(VIEWS).map(([view, { label }]) => [view, label]), state.view,
    (view) => change({ view, pinned: null }));
  radios(element("layers"), "layer", numbers(layerCount()), state.layer, (layer) => change({ layer }));
  radios(element("heads"), "head", [...numbers(headCount()), [MEAN, "mean"]], state.head, (head) => change({ head }));
}

function change(changes) {
  const rebuilt = "view" in changes || "sentence" in changes;
  Object.assign(state, changes);
  state.layer = Math.min(state.layer, layerCount() - 1);
  if (state.head !== MEAN) state.head = Math.min(state.head, headCount() - 1);
  if (rebuilt) show();
  else refresh();
}

// ------------------------------------------------------------------------------------------------------------- words

const sides = { left: "rows", right: "columns" };
const items = { left: [], right: [] };

function fill(side) {
  const list = element(side);
  list.replaceChildren();
  items[side] = words(sides[side]).map((word, index) => {
    const item = document.createElement("li");
    const text = document.createElement("span");
    const number = document.createElement("b");
    text.dir = "auto";
    for (const part of word.split(/(▁)/).filter(Boolean)) {
      if (part === "▁") text.append(Object.assign(document.createElement("i"), { textContent: part }));
      else text.append(part);
    }
    item.title = word;
    item.setAttribute("role", "option");
    item.tabIndex = index === 0 ? 0 : -1;
    item.append(text, number);
    item.addEventListener("mouseenter", () => light(side, index));
    item.addEventListener("mouseleave", rest);
    item.addEventListener("focus", () => { rove(side, index); light(side, index); });
    item.addEventListener("blur", rest);
    item.addEventListener("click", () => { item.focus(); pin(side, index); });
    item.addEventListener("keydown", (event) => move(event, side, index));
    list.append(item);
    return item;
  });
}

function rove(side, index) {
  items[side].forEach((item, other) => { item.tabIndex = other === index ? 0 : -1; });
}

function move(event, side, index) {
  const other = side === "left" ? "right" : "left";
  const last = items[side].length - 1;
  const targets = {
    ArrowUp: [side, Math.max(index - 1, 0)],
    ArrowDown: [side, Math.min(index + 1, last)],
    Home: [side, 0],
    End: [side, last],
    ArrowLeft: side === "right" ? [other, items[other].findIndex((item) => item.tabIndex === 0)] : null,
    ArrowRight: side === "left" ? [other, items[other].findIndex((item) => item.tabIndex === 0)] : null,
  };
  if (event.key === "Enter" || event.key === " ") pin(side, index);
  else if (event.key === "Escape") { state.pinned = null; rest(); }
  else if (targets[event.key]) items[targets[event.key][0]][targets[event.key][1]].focus();
  else return;
  event.preventDefault();
}

function pin(side, index) {
  const same = state.pinned && state.pinned.side === side && state.pinned.index === index;
  state.pinned = same ? null : { side, index };
  light(side, index);
}

const drawn = (weight) => Math.sqrt(weight);
const isolated = (word) => "\u2068" + word.replaceAll("▁", "") + "\u2069";  // so that Hebrew or Arabic stays in its place

function clear() {
  for (const side of ["left", "right"]) {
    items[side].forEach((item, index) => {
      const pinned = state.pinned && state.pinned.side === side && state.pinned.index === index;
      item.classList.remove("on", "strong");
      item.style.removeProperty("--w");
      item.lastElementChild.textContent = "";
      item.setAttribute("aria-selected", pinned ? "true" : "false");
    });
  }
}

// Shows the weights of one word: for a word on the left, what it looks at; for a word on the right, what looks at it.
function light(side, index) {
  clear();
  const weights = matrix(state.layer, state.head);
  const columns = items.right.length;
  const other = side === "left" ? "right" : "left";
  const at = (there) => (side === "left" ? weights[index * columns + there] : weights[there * columns + index]);
  items[side][index].classList.add("on");
  const found = [];
  items[other].forEach((item, there) => {
    const weight = at(there);
    if (weight < LEAST) return;
    item.style.setProperty("--w", drawn(weight).toFixed(3));
    item.classList.toggle("strong", drawn(weight) > 0.7);
    item.lastElementChild.textContent = weight.toFixed(3);
    found.push([weight, words(sides[other])[there]]);
  });
  found.sort((a, b) => b[0] - a[0]);
  const list = found.slice(0, 4).map(([weight, word]) => isolated(word) + " " + weight.toFixed(3)).join(" · ");
  const said = found.length ? list : "nothing";
  element("hint").textContent = isolated(words(sides[side])[index]) +
    (side === "left" ? " looks at " : " is looked at by ") + said;
  lines((row, column) => (side === "left" ? row : column) === index);
}

function rest() {
  if (state.pinned) { light(state.pinned.side, state.pinned.index); return; }
  const focused = document.activeElement;
  for (const side of ["left", "right"]) {
    const index = items[side].indexOf(focused);
    if (index >= 0) { light(side, index); return; }
  }
  clear();
  element("hint").textContent = "Point at a word, or move to it with Tab and the arrow keys. Click or press Enter to pin it.";
  strongestLines();
}

// While no word is selected: draws each left word's largest weight, and its other weights that are at least half as large.
function strongestLines() {
  const weights = matrix(state.layer, state.head);
  const columns = items.right.length;
  const largest = items.left.map((_, row) => Math.max(...weights.subarray(row * columns, (row + 1) * columns)));
  lines((row, column) => weights[row * columns + column] >= largest[row] / 2);
}

function lines(chosen) {
  const weights = matrix(state.layer, state.head);
  const columns = items.right.length;
  const paths = [];
  weights.forEach((weight, i) => {
    const row = Math.floor(i / columns), column = i % columns;
    if (weight < LEAST || !chosen(row, column)) return;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", `M0 ${row + 0.5} C45 ${row + 0.5} 55 ${column + 0.5} 100 ${column + 0.5}`);
    path.style.strokeOpacity = drawn(weight).toFixed(3);
    path.style.strokeWidth = (0.75 + 2.5 * weight).toFixed(2);
    paths.push(path);
  });
  element("lines").replaceChildren(...paths);
}

// --------------------------------------------------------------------------------------------------------- all heads

const squares = [];

function colours() {
  const style = getComputedStyle(document.documentElement);
  const paper = style.getPropertyValue("--card").trim();
  const from = [1, 3, 5].map((at) => parseInt(paper.slice(at, at + 2), 16));
  const to = style.getPropertyValue("--hue").trim().split(/\s+/).map(Number);
  return (share) => from.map((value, i) => value + (to[i] - value) * share);
}

function paint(canvas, weights) {
  const mix = colours();
  canvas.width = items.right.length;
  canvas.height = items.left.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  weights.forEach((weight, i) => image.data.set([...mix(drawn(weight)), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

function fillSquares() {
  const place = element("squares");
  const heads = [...numbers(headCount()), [MEAN, "mean"]];
  place.replaceChildren();
  squares.length = 0;
  place.style.gridTemplateColumns = `auto repeat(${heads.length}, minmax(1.5rem, 7rem))`;
  const text = (words) => place.append(Object.assign(document.createElement("span"), { textContent: words }));
  text("head");
  for (const [, name] of heads) text(name);
  for (let layer = 0; layer < layerCount(); layer++) {
    text("layer " + (layer + 1));
    for (const [head, name] of heads) {
      const button = document.createElement("button");
      const canvas = document.createElement("canvas");
      const what = head === MEAN ? "mean of heads" : "head " + name;
      button.type = "button";
      button.setAttribute("aria-label", `layer ${layer + 1}, ${what}`);
      button.append(canvas);
      button.addEventListener("click", () => change({ layer, head }));
      button.addEventListener("keydown", (event) => moveSquare(event, layer, head, heads.length));
      place.append(button);
      paint(canvas, matrix(layer, head));
      squares.push({ button, canvas, layer, head });
    }
  }
}

function moveSquare(event, layer, head, width) {
  const column = head === MEAN ? width - 1 : head;
  const targets = {
    ArrowUp: [layer - 1, column],
    ArrowDown: [layer + 1, column],
    ArrowLeft: [layer, column - 1],
    ArrowRight: [layer, column + 1],
    Home: [layer, 0],
    End: [layer, width - 1],
  };
  if (!targets[event.key]) return;
  event.preventDefault();
  const [row, place] = targets[event.key];
  if (row < 0 || row >= layerCount() || place < 0 || place >= width) return;
  const { button, layer: newLayer, head: newHead } = squares[row * width + place];
  change({ layer: newLayer, head: newHead });
  button.focus();
}

// -------------------------------------------------------------------------------------------------------------- page

// Shows a new layer or head; the words stay the same.
function refresh() {
  for (const { button, layer, head } of squares) {
    const chosen = layer === state.layer && head === state.head;
    button.setAttribute("aria-pressed", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  for (const [name, value] of [["view", state.view], ["layer", state.layer], ["head", state.head]]) {
    document.querySelector(`input[name=${name}][value="${value}"]`).checked = true;
  }
  rest();
}

function show() {
  element("heading").textContent = sentences[state.sentence].heading;
  showControls();
  element("left-name").textContent = VIEWS[state.view].left;
  element("right-name").textContent = VIEWS[state.view].right;
  fill("left");
  fill("right");
  const tallest = Math.max(items.left.length, items.right.length);
  element("lines").setAttribute("viewBox", `0 0 100 ${tallest}`);
  element("lines").style.height = `calc(var(--row) * ${tallest})`;
  fillSquares();
  refresh();
}

sentences.forEach(({ heading, src }, index) => {
  const text = `${index + 1}: ${src.slice(0, -1).join("").replaceAll("▁", " ").trim()}`;  // without the end mark
  element("sentence").append(new Option(text.length > 60 ? text.slice(0, 59) + "…" : text, index, false, index === 0));
});
element("sentences").hidden = sentences.length < 2;
element("sentence").addEventListener("change", (event) => change({ sentence: Number(event.target.value), pinned: null }));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { canvas, layer, head } of squares) paint(canvas, matrix(layer, head));
});
state.layer = layerCount() - 1;
show();
