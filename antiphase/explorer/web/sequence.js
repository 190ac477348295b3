"use strict";
// The sequence view: tokens as text, coloured by the attention of one row: signal, noise, difference.
(() => {
  const E = Explorer;
  const rowsOf = (maps) => (maps.A1 ? ["A1", "lamA2", "A"] : ["A"]);

  const classes = (slot, i) => {
    const role = slot.roles[i] ?? (i === 0 ? "sink" : "");
    return `token ${["noise", "sink", "key", "answer"].includes(role) ? role : ""}`;
  };

  const tokens = (slot, name) => E.el("div", { class: "tokens", "data-map": name },
    ...slot.tokens.flatMap((token, i) => [
      E.el("span", { class: classes(slot, i), "data-i": String(i) }, E.visible(token)),
      slot.roles.length && !slot.tokens.some((t) => t.startsWith(" ")) ? " " : ""]));

  // Colour every token by its weight in the row; called on every hover, on data that is here.
  const paint = () => {
    E.view.forEach((slot, at) => {
      const box = document.querySelector(`.slot[data-at="${at}"]`), maps = E.maps(slot);
      if (!box || !maps) return;
      const T = slot.tokens.length, row = E.rowOf(slot), names = rowsOf(maps);
      const weights = Object.fromEntries(names.map((n) => [n, maps[n].subarray(row * T, row * T + T)]));
      let limit = 0.02;
      for (const name of names) for (const w of weights[name]) limit = Math.max(limit, Math.abs(w));
      const relevant = new Set(slot.relevant[row] ?? []);
      for (const block of box.querySelectorAll(".tokens")) {
        const mine = weights[block.dataset.map];
        for (const token of block.querySelectorAll(".token")) {
          const i = Number(token.dataset.i);
          token.classList.toggle("future", i > row);
          token.classList.toggle("query", i === row);
          token.classList.toggle("relevant", relevant.has(i));
          const colour = i > row ? null : E.rgb(mine[i], limit);
          token.style.backgroundColor = colour ? `rgb(${colour})` : "";
          token.style.color = colour && Math.abs(mine[i]) > limit / 9 ? E.readable(colour) : "";
        }
      }
      for (const name of names) {
        const order = [...weights[name].keys()].filter((i) => i <= row)
          .sort((i, j) => Math.abs(weights[name][j]) - Math.abs(weights[name][i])).slice(0, 5);
        const text = order.map((i) => `${E.label(slot.tokens[i])} (${i}) ${weights[name][i].toFixed(3)}`);
        box.querySelector(`[data-largest="${name}"]`).textContent = `largest: ${text.join(" · ")}`;
      }
      box.querySelector("[data-query]").textContent = `query ${row}: ${E.label(slot.tokens[row])}`;
      box.querySelector("[data-limit]").textContent = `±${limit.toFixed(2)}, √`;
      const lam = E.lam(slot, row), shown = box.querySelector("[data-lam]");
      if (shown) shown.textContent = `noise lam A2, lam = ${lam.toFixed(3)}`;
    });
    E.drawPrediction();
  };

  const picture = (slot, png) => {
    const maps = E.maps(slot), row = E.rowOf(slot), T = slot.tokens.length;
    const escape = (t) => t.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
    const width = 900, parts = [];
    let y = 24;
    const limit = Math.max(0.02, ...rowsOf(maps).flatMap((n) => [...maps[n].subarray(row * T, row * T + T)].map(Math.abs)));
    const title = `${slot.title}, layer ${slot.head[0]}, head ${slot.head[1]}, query ${row}: ${E.visible(slot.tokens[row])}`;
    parts.push(`<text x="8" y="18" font-weight="bold">${escape(title)}</text>`);
    for (const name of rowsOf(maps)) {
      parts.push(`<text x="8" y="${(y += 22)}" opacity=".7">${escape(E.mapTitle(slot, name))}</text>`);
      let x = 8;
      y += 22;
      for (let i = 0; i <= row; i++) {
        const word = E.visible(slot.tokens[i]), wide = 7.2 * word.length + 8;
        if (x + wide > width - 8) { x = 8; y += 22; }
        const colour = E.rgb(maps[name][row * T + i], limit);
        const mark = (slot.relevant[row] ?? []).includes(i) ? ` stroke="${E.named("answer")}" stroke-width="2"` : "";
        parts.push(`<rect x="${x}" y="${y - 14}" width="${wide}" height="18" rx="3" fill="rgb(${colour})"${mark}/>`,
          `<text x="${x + 4}" y="${y}" fill="${E.readable(colour)}">${escape(word)}</text>`);
        x += wide + 2;
      }
    }
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${y + 16}" font-family="monospace" font-size="12">`
      + `<rect width="100%" height="100%" fill="${getComputedStyle(document.body).backgroundColor}"/><g fill="${E.named("ink")}">${parts.join("")}</g></svg>`;
    E.downloadSVG(E.fileName(slot, `row${row}`), svg, width, y + 16, png);
  };

  const legend = (slot) => {
    const mark = (role, word) => E.el("span", {}, E.el("span", { class: `token ${role}` }, "token"), ` ${word}`);
    const known = slot.roles.length > 0;
    return E.el("div", { class: "legend" },
      E.el("span", {}, "− "), E.el("span", { class: "scale", role: "img", "aria-label": "colours from negative over zero, white, to positive" }),
      E.el("span", { "data-limit": "", title: "colours go with the square root of the weight" }),
      mark("query", "query"), mark("sink", "sink"),
      known ? mark("relevant", "needle and answer (R)") : null, known ? mark("noise", "distractor") : null,
      known ? mark("key", "other needle") : null);
  };

  E.slotBox = (slot, at, ...children) => E.el("article", {
    class: `slot${E.slots()[at] === E.active ? " active" : ""}${E.view.length > 1 ? " of-two" : ""}`, "data-at": String(at),
    onpointerdown: () => { if (E.active !== E.slots()[at]) { E.active = E.slots()[at]; E.markActive(); } },
  },
    E.el("h2", {}, E.el("span", {}, slot.title), E.el("span", { class: "soft" },
      `${slot.mechanism}${slot.step !== null ? `, step ${slot.step}` : ""} · layer ${slot.head[0]}, head ${slot.head[1]}`)),
    slot.note ? E.el("p", { class: "soft" }, slot.note) : null, ...children);
  E.markActive = () => document.querySelectorAll(".slot").forEach((box) =>
    box.classList.toggle("active", E.slots()[Number(box.dataset.at)] === E.active));
  E.dots = (letter, name, value) => ({ [`${letter}.${name}`]: value });

  E.headSelect = (slot, at) => {
    const letter = E.slots()[at];
    const options = slot.layers.flatMap((heads, layer) => Array.from({ length: heads }, (_, head) =>
      E.el("option", { value: `${layer}.${head}`, selected: layer === slot.head[0] && head === slot.head[1] }, `layer ${layer}, head ${head}`)));
    return E.el("label", {}, "head", E.el("select", { "data-head": letter,
      onchange: (event) => E.set(E.dots(letter, "head", event.target.value)) }, ...options));
  };

  E.views.sequence = {
    title: "Sequence", controls: true,
    draw(place) {
      E.fill(place, E.el("div", { class: `slots${E.view.length > 1 ? " two" : ""}` }, ...E.view.map((slot, at) => {
        const maps = E.maps(slot);
        if (!maps) return null;
        const block = (name) => [
          E.el("h3", name === "lamA2" ? { "data-lam": "" } : {}, E.mapTitle(slot, name)),
          tokens(slot, name), E.el("p", { class: "soft readout", "data-largest": name })];
        return E.slotBox(slot, at,
          E.el("div", { class: "row" }, E.headSelect(slot, at), E.el("span", { "data-query": "", class: "readout" }),
            E.el("button", { type: "button", onclick: () => picture(slot, true) }, "PNG"),
            E.el("button", { type: "button", onclick: () => picture(slot, false) }, "SVG"),
            E.el("button", { type: "button", "data-json": "", onclick: () => E.download(E.fileName(slot, "view.json"), JSON.stringify(slot), "application/json") }, "JSON")),
          legend(slot), ...rowsOf(maps).flatMap(block));
      })));
      place.onpointerover = (event) => {
        const token = event.target.closest?.(".tokens .token");
        if (token) { E.hovered = Number(token.dataset.i); paint(); }
      };
      place.onpointerleave = () => { if (E.hovered !== undefined) { E.hovered = undefined; paint(); } };
      place.onclick = (event) => {
        const token = event.target.closest?.(".tokens .token");
        if (token) { E.hovered = undefined; E.set({ row: token.dataset.i }, false); }
      };
      paint();
    },
    moved: paint,
  };
})();
