"use strict";
// What all views share: the state in the address, elements, colours, maps and downloads.
const Explorer = {
  state: {}, // names and values of the address, all strings
  view: [], // what the server answered: one entry per model
  active: "a", // the model that the keyboard acts on
  views: {}, // by name: {title, draw(place), controls: whether the panel of noise is shown}
  saved: null, // the data of a saved page
};

(() => {
  const E = Explorer;
  E.slots = () => ["a", "b"].filter((letter) => E.state[letter]);
  E.place = (letter) => E.view[E.slots().indexOf(letter)];

  // Elements; text is always text, never markup.
  E.el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name in made && typeof value !== "string") made[name] = value;
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  };
  E.fill = (place, ...children) => place.replaceChildren(...children.filter(Boolean));
  E.plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;"); // for plotly's labels
  E.visible = (token) => (token === "" ? "∅" : token.replace(/\n/g, "⏎").replace(/\t/g, "⇥"));
  E.label = (token) => E.visible(token).trim() || "␣"; // in a sentence or on an axis

  // The address.
  E.readAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  E.writeAddress = () => {
    const set = Object.entries(E.state).filter(([, value]) => value !== "");
    const address = `#${new URLSearchParams(set)}`;
    if (address !== location.hash) history.replaceState(null, "", address);
  };
  E.set = (changes, compute = true) => {
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") delete E.state[name];
      else E.state[name] = String(value);
    }
    E.writeAddress();
    return compute ? E.refresh() : E.draw();
  };

  // Colours of weights, from the style sheet's three anchors. The distance from zero is the square
  // root of |weight| / limit, so that small weights are seen beside the one that is near 1.
  const anchors = {};
  const parts = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);
  E.css = (name) => {
    const probe = document.body.appendChild(E.el("i", { style: `color: var(--${name})` }));
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  E.readColours = () => {
    for (const name of ["negative", "zero", "positive", "hidden", "ink", "line", "answer", "soft"])
      anchors[name] = parts(E.css(name));
  };
  E.rgb = (weight, limit) => {
    const end = anchors[weight < 0 ? "negative" : "positive"];
    const t = Math.sqrt(Math.min(Math.abs(weight) / limit, 1));
    return anchors.zero.map((from, i) => Math.round(from + t * (end[i] - from)));
  };
  E.named = (name) => `rgb(${anchors[name].join(",")})`;
  E.colourScale = () => Array.from({ length: 41 }, (_, i) => [i / 40, `rgb(${E.rgb(i / 20 - 1, 1)})`]);
  E.readable = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff");

  // Maps: the lower triangle of 16-bit integers becomes [T, T].
  const unpacked = new WeakMap(), scaled = new WeakMap();
  E.unpack = (packed) => {
    if (unpacked.has(packed)) return unpacked.get(packed);
    const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
    const values = new DataView(bytes.buffer);
    const T = packed.T, found = new Float32Array(T * T);
    for (let i = 0, at = 0; i < T; i++)
      for (let j = 0; j <= i; j++, at += 2) found[i * T + j] = values.getInt16(at, true) * packed.scale;
    unpacked.set(packed, found);
    return found;
  };
  E.factor = (text, layer) => {
    if (!text) return 1;
    if (!text.includes(":")) return Number(text);
    const pair = text.split(",").map((part) => part.split(":")).find(([place]) => Number(place) === layer);
    return pair ? Number(pair[1]) : 1;
  };
  // `slot.applied` is the factor that the server has used; the page scales by what is wanted now.
  const ratioOf = (slot, layer) => {
    const used = E.factor(slot.applied, layer);
    return used ? E.factor(E.state[`${E.slots()[E.view.indexOf(slot)]}.lam`], layer) / used : 1;
  };
  const lamOf = (head, row) => (head.lam.length > 1 ? head.lam[row] : head.lam[0]);
  // The maps of a head as [T, T] arrays: A1, A2, lamA2, A; of one map per head only A.
  E.maps = (slot, key = slot.head.join(".")) => {
    const head = slot.heads[key];
    if (!head) return null;
    const signal = E.unpack(head.signal);
    if (!head.noise) return { A: signal };
    const ratio = ratioOf(slot, head.layer);
    if (scaled.get(head)?.ratio === ratio) return scaled.get(head).maps; // hovering asks again and again
    const noise = E.unpack(head.noise), T = head.signal.T;
    const lamNoise = new Float32Array(T * T);
    for (let i = 0; i < T; i++) {
      const lam = ratio * lamOf(head, i);
      for (let j = 0; j <= i; j++) lamNoise[i * T + j] = lam * noise[i * T + j];
    }
    const stored = head.difference && Math.abs(ratio - 1) < 1e-9;
    const difference = stored ? E.unpack(head.difference) : signal.map((w, at) => w - lamNoise[at]);
    const maps = { A1: signal, A2: noise, lamA2: lamNoise, A: difference };
    scaled.set(head, { ratio, maps });
    return maps;
  };
  E.lam = (slot, row) => {
    const head = slot.heads[slot.head.join(".")];
    return head?.lam ? ratioOf(slot, head.layer) * lamOf(head, row) : null;
  };
  E.titles = { A1: "signal A1", A2: "noise A2", lamA2: "lam A2", A: "A1 − lam A2" };
  E.mapTitle = (slot, name) => (slot.noise[slot.head[0]] ? E.titles[name] : "attention A");
  E.rowOf = (slot) => (E.hovered ?? Number(E.state.row ?? slot.row)) % slot.tokens.length;
  E.limitOf = (maps) => {
    let largest = 0;
    const T = Math.sqrt(maps.A.length);
    for (let i = 1; i < T; i++) // the first row is 1 by definition
      for (let j = 0; j <= i; j++) largest = Math.max(largest, Math.abs(maps.A[i * T + j]));
    return Math.max(0.05, Math.min(0.5, largest));
  };

  // Downloads.
  E.download = (name, content, type) => {
    const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    E.el("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  E.downloadSVG = (name, svg, width, height, png) => {
    if (!png) return E.download(`${name}.svg`, svg, "image/svg+xml");
    const image = new Image();
    image.onload = () => {
      const canvas = E.el("canvas", { width: 2 * width, height: 2 * height });
      canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
      canvas.toBlob((blob) => E.download(`${name}.png`, blob));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  };
  E.fileName = (slot, what) => `${slot.title}-layer${slot.head[0]}-head${slot.head[1]}-${what}`.replace(/[^\w.-]+/g, "_");

  // Plotly in the colours of the page.
  E.layout = (more) => {
    const axis = { gridcolor: E.named("line"), zerolinecolor: E.named("line"), linecolor: E.named("line") };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: E.named("ink"), size: 11 },
      margin: { l: 50, r: 10, t: 30, b: 40 }, ...more,
      xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
    };
  };
  E.config = { displayModeBar: false, responsive: true };
  E.table = (columns, rows, attributes = {}) =>
    E.el("div", { class: "scroll" }, E.el("table", attributes,
      E.el("tr", {}, ...columns.map((name) => E.el("th", {}, name))),
      ...rows.map((row) => E.el("tr", {}, ...row.map((cell) => E.el("td",
        { class: cell.verdict ?? null, title: cell.note || null }, cell.text ?? String(cell)))))));
})();
