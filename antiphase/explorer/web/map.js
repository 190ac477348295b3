"use strict";
// The map view: thumbnails of all heads, the maps of one head, and one of them large.
(() => {
  const E = Explorer;

  const onCanvas = (n, colour) => {
    const canvas = E.el("canvas", { width: n, height: n }), context = canvas.getContext("2d");
    const image = context.createImageData(n, n);
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++) {
        const [r, g, b] = colour(i, j);
        image.data.set([r, g, b, 255], 4 * (i * n + j));
      }
    context.putImageData(image, 0, 0);
    return canvas;
  };
  const hidden = () => E.css("hidden").match(/[\d.]+/g).slice(0, 3).map(Number);

  // A thumbnail: each cell has the weight of largest magnitude that it covers.
  const LIMIT = 0.5;
  const thumbnail = (slot, layer, head, grey) => {
    const small = slot.thumbnails[layer], n = small.n, maps = E.saved ? E.maps(slot, `${layer}.${head}`) : null;
    let cell;
    if (maps) { // of a saved page: from the maps, which the slider has scaled
      const T = slot.tokens.length, found = new Float32Array(n * n);
      for (let i = 0; i < T; i++)
        for (let j = 0; j <= i; j++) {
          const at = Math.floor((i * n) / T) * n + Math.floor((j * n) / T), w = maps.A[i * T + j];
          if (Math.abs(w) > Math.abs(found[at])) found[at] = w;
        }
      cell = (i, j) => found[i * n + j];
    } else {
      small.values ??= Int8Array.from(atob(small.data), (c) => c.charCodeAt(0));
      cell = (i, j) => (small.values[(head * n + i) * n + j] / 127) * LIMIT;
    }
    return onCanvas(n, (i, j) => (j > i ? grey : E.rgb(cell(i, j), LIMIT)));
  };

  const grid = (slot, at) => {
    const letter = E.slots()[at], most = Math.max(...slot.layers), grey = hidden();
    const side = Math.max(26, Math.min(64, Math.floor((E.view.length > 1 ? 420 : 620) / most)));
    const rows = slot.layers.flatMap((heads, layer) => [E.el("span", { class: "name" }, String(layer)),
      ...Array.from({ length: most }, (_, head) => head >= heads ? E.el("span") : E.el("button", {
        type: "button", "data-cell": `${layer}.${head}`, title: `layer ${layer}, head ${head}`,
        "aria-label": `layer ${layer}, head ${head}`, "aria-pressed": String(layer === slot.head[0] && head === slot.head[1]),
        onclick: () => E.set(E.dots(letter, "head", `${layer}.${head}`)),
      }, thumbnail(slot, layer, head, grey)))]);
    return E.el("div", { class: "grid", style: `grid-template-columns: max-content repeat(${most}, ${side}px)` }, ...rows);
  };

  const smallMaps = (slot, maps, limit) => {
    const T = slot.tokens.length, grey = hidden(), chosen = mapName(maps);
    return E.el("div", { class: "small" }, ...["A1", "A2", "lamA2", "A"].filter((name) => maps[name]).map((name) =>
      E.el("button", { type: "button", "data-map": name, "aria-pressed": String(name === chosen), onclick: () => E.set({ map: name }, false) },
        onCanvas(T, (i, j) => (j > i ? grey : E.rgb(maps[name][i * T + j], limit))),
        E.el("span", {}, E.mapTitle(slot, name)))));
  };
  const mapName = (maps) => (maps[E.state.map] ? E.state.map : "A");

  const DIGITS = { "CMRR, dB": 1, "effective rank, A1": 1, "effective rank, lam A2": 1, "effective rank, A": 1 };
  const MEANS = {
    lam: "weight of the noise map", "mass on R": "fraction of |A| on the needle that holds the answer",
    "mass on S": "fraction of |A| on the first token", "mass on I": "fraction of |A| on irrelevant tokens",
    "mass on own": "fraction of |A| on the query itself", "CMRR, dB": "common-mode rejection ratio: above 0, noise is reduced more than signal",
    "corr on I": "correlation of log A1 and log A2 on irrelevant tokens", entropy: "1 uniform, 0 one token",
    "negative mass": "fraction of |A| that is negative", "max weight": "largest fraction of a row",
  };
  const metrics = (slot) => {
    const found = slot.heads[slot.head.join(".")].metrics;
    return E.el("div", {}, E.el("h3", {}, `layer ${slot.head[0]}, head ${slot.head[1]}`), E.el("div", { class: "metrics" },
      ...Object.entries(found).map(([name, value]) => E.el("p", { title: MEANS[name] ?? "of rows ≥ T/2, columns < T/2" },
        E.el("span", {}, name), E.el("b", { "data-metric": name }, value.toFixed(DIGITS[name] ?? 3))))),
      E.saved && Object.keys(E.state).some((name) => name.endsWith(".lam")) ? E.el("p", { class: "soft" }, "metrics: with the learned lam") : null);
  };

  const large = (slot, maps, limit, place, readout) => {
    const T = slot.tokens.length, name = mapName(maps), A = maps[name];
    const z = Array.from({ length: T }, (_, i) => {
      const row = A.slice(i * T, i * T + T);
      row.fill(NaN, i + 1);
      return row;
    });
    const every = Math.max(1, Math.ceil(T / (place.clientWidth < 420 ? 22 : 44)));
    const at = [...Array(T).keys()].filter((i) => i % every === 0);
    const ticks = { tickvals: at, ticktext: at.map((i) => E.plain(E.label(slot.tokens[i]).slice(0, 12))), tickfont: { size: 9 }, showgrid: false, zeroline: false, range: [-0.5, T - 0.5] };
    const row = E.rowOf(slot), relevant = slot.relevant[row] ?? [];
    const line = (shape) => ({ type: "rect", line: { width: 1.5, color: E.named("answer") }, ...shape });
    const shapes = relevant.map((j) => line({ x0: j - 0.5, x1: j + 0.5, y0: row - 0.5, y1: row + 0.5 }));
    shapes.push(line({ x0: -0.5, x1: row + 0.5, y0: row - 0.5, y1: row + 0.5, line: { width: 1, color: E.named("ink") } }));
    Plotly.react(place, [{ type: "heatmap", z, zmin: -limit, zmax: limit, colorscale: E.colourScale(), hoverinfo: "none", colorbar: { thickness: 8, tickfont: { size: 9 } } }],
      E.layout({ plot_bgcolor: E.named("hidden"), margin: { l: 62, r: 0, t: 28, b: 62 }, shapes,
        title: { text: E.plain(`${slot.title}: ${E.mapTitle(slot, name)}, layer ${slot.head[0]}, head ${slot.head[1]}`), font: { size: 12 } },
        xaxis: { ...ticks, tickangle: 90 }, yaxis: { ...ticks, range: [T - 0.5, -0.5] } }), E.config);
    place.removeAllListeners?.("plotly_hover");
    place.on("plotly_hover", ({ points: [point] }) => {
      const i = point.y, j = point.x, other = ["A1", "A2", "lamA2", "A"].filter((n) => maps[n]);
      readout.textContent = `${i} ${E.label(slot.tokens[i])} → ${j} ${E.label(slot.tokens[j])}: `
        + other.map((n) => `${E.mapTitle(slot, n)} ${maps[n][i * T + j].toFixed(4)}`).join(", ");
    });
    place.removeAllListeners?.("plotly_click");
    place.on("plotly_click", ({ points: [point] }) => E.set({ row: point.y }, false));
  };

  E.views.map = {
    title: "Maps", controls: true,
    draw(place) {
      const after = [];
      const boxes = E.view.map((slot, at) => {
        const maps = E.maps(slot);
        if (!maps) return null;
        const limit = E.limitOf(maps), plot = E.el("div", { class: "plot" }), readout = E.el("p", { class: "readout", "data-readout": "" }, "Point at a cell for its weight; click to choose its row.");
        after.push(() => large(slot, maps, limit, plot, readout));
        const save = (format) => Plotly.downloadImage(plot, { format, width: 900, height: 800, filename: E.fileName(slot, mapName(maps)) });
        return E.slotBox(slot, at, E.el("div", { class: "heads" },
          E.el("div", {}, E.el("h3", {}, "all heads: layers down, heads across"), grid(slot, at)),
          E.el("div", {}, E.el("h3", {}, "this head"), smallMaps(slot, maps, limit))),
          E.el("div", { class: "large" }, E.el("div", {}, plot, readout), metrics(slot)),
          E.el("div", { class: "row" },
            E.el("button", { type: "button", "data-png": "", onclick: () => save("png") }, "PNG"),
            E.el("button", { type: "button", onclick: () => save("svg") }, "SVG"),
            E.el("button", { type: "button", onclick: () => E.download(E.fileName(slot, "view.json"), JSON.stringify(slot), "application/json") }, "JSON")));
      });
      E.fill(place, E.el("div", { class: `slots${E.view.length > 1 ? " two" : ""}` }, ...boxes));
      for (const draw of after) draw();
      E.drawPrediction();
    },
  };
})();
