"use strict";
// The noise panel: lam times a factor, edits of the chosen head's noise, and what the model predicts.
(() => {
  const E = Explorer;
  const noisy = () => E.slots().filter((letter) => E.place(letter)?.noise.some(Boolean));

  const lamText = (letter) => E.state[`${letter}.lam`] ?? "";
  const setLam = (factor) => {
    const layer = E.lamLayer;
    const changes = {};
    for (const letter of noisy()) {
      let text = Number(factor) === 1 ? "" : String(factor);
      if (layer !== "all") {
        const slot = E.place(letter), kept = slot.noise.map((_, i) => E.factor(lamText(letter), i));
        if (Number(layer) < kept.length) kept[Number(layer)] = Number(factor);
        text = kept.every((f) => f === 1) ? "" : kept.map((f, i) => `${i}:${f}`).filter((_, i) => slot.noise[i] && kept[i] !== 1).join(",");
      }
      changes[`${letter}.lam`] = text;
    }
    return changes;
  };
  E.lamLayer = "all";

  const slider = () => {
    const first = noisy()[0], layers = E.place(first).noise.length;
    const now = E.lamLayer === "all" ? E.factor(lamText(first).includes(":") ? "" : lamText(first), 0) : E.factor(lamText(first), Number(E.lamLayer));
    const shown = E.el("output", { "data-factor": "" }, `× ${now.toFixed(2)}`);
    const input = E.el("input", { type: "range", min: "0", max: "2", step: "0.05", value: String(now), id: "lam", "aria-label": "factor of lam",
      oninput: (event) => { shown.textContent = `× ${Number(event.target.value).toFixed(2)}`; E.set(setLam(event.target.value)); } });
    return E.el("div", { class: "row" }, E.el("label", { class: "lambda" }, "lam", input, shown),
      E.el("label", {}, "of", E.el("select", { id: "lam-layer", onchange: (event) => { E.lamLayer = event.target.value; E.drawControls(); } },
        E.el("option", { value: "all" }, "all layers"),
        ...Array.from({ length: layers }, (_, i) => E.el("option", { value: String(i), selected: E.lamLayer === String(i) }, `layer ${i}`)))),
      E.el("button", { type: "button", id: "reset", onclick: () => {
        E.lamLayer = "all";
        E.set(Object.fromEntries(noisy().flatMap((letter) => [[`${letter}.lam`, ""], [`${letter}.edits`, ""]])));
      } }, "reset"));
  };

  const editsOf = (letter) => Object.fromEntries((E.state[`${letter}.edits`] ?? "").split(",").filter(Boolean)
    .map((part) => [part.split(":")[0], part.split(":").slice(1).join(":")]));
  const setEdit = (letter, key, edit) => {
    const edits = editsOf(letter);
    if (edit) edits[key] = edit; else delete edits[key];
    E.set(E.dots(letter, "edits", Object.entries(edits).map(([place, what]) => `${place}:${what}`).join(",")));
  };
  const words = (edit) => edit.replace("off", "no noise").replace("head:", "noise of head ").replace("rank:", "noise of rank ");

  const headEdit = (letter) => {
    const slot = E.place(letter), [layer, head] = slot.head, key = slot.head.join("."), edits = editsOf(letter);
    if (!slot.noise[layer]) return null;
    const [kind, value] = (edits[key] ?? "").split(":");
    const choose = E.el("select", { "data-edit": letter, onchange: (event) => setEdit(letter, key, event.target.value === "rank" ? "rank:1" : event.target.value) },
      E.el("option", { value: "" }, "as learned"), E.el("option", { value: "off", selected: kind === "off" }, "knocked out"),
      ...Array.from({ length: slot.layers[layer] }, (_, other) => other === head ? null
        : E.el("option", { value: `head:${other}`, selected: kind === "head" && Number(value) === other }, `that of head ${other}`)).filter(Boolean),
      E.el("option", { value: "rank", selected: kind === "rank" }, "truncated to rank"));
    const rank = kind === "rank" ? E.el("input", { type: "number", min: "1", max: String(slot.tokens.length), value, "data-rank": letter, "aria-label": "rank",
      onchange: (event) => setEdit(letter, key, `rank:${Math.max(1, Math.min(slot.tokens.length, Math.round(event.target.value) || 1))}`) }) : null;
    return E.el("div", { class: "row" }, E.el("label", {}, `${slot.title}: noise of layer ${layer}, head ${head}`, choose, rank),
      ...Object.entries(edits).map(([place, edit]) => E.el("button", { type: "button", class: "chip", title: "undo", onclick: () => setEdit(letter, place, null) },
        `${place}: ${words(edit)} ✕`)));
  };

  const change = (before, now, digits) => (Math.abs(before - now) < 10 ** -digits / 2 ? now.toFixed(digits) : `${before.toFixed(digits)} → ${now.toFixed(digits)}`);
  E.drawPrediction = () => {
    for (const place of document.querySelectorAll("[data-prediction]")) {
      const slot = E.view[Number(place.dataset.prediction)];
      if (!slot) continue;
      const row = E.rowOf(slot), answer = slot.answer, most = Math.max(...slot.top[row].map((entry) => Math.max(entry[1], entry[2])));
      const token = answer.token[row], last = row === slot.tokens.length - 1;
      E.fill(place, E.el("h3", {}, `${slot.title}: after ${row} ${E.label(slot.tokens[row])}`),
        E.el("p", { "data-answer-logit": String(answer.logit[row]), "data-answer-probability": String(answer.probability[row]) },
          `${last ? "most probable" : "next token"} `, E.el("b", {}, E.label(token)),
          `: probability ${change(answer["probability before"][row], answer.probability[row], 4)}, logit ${change(answer["logit before"][row], answer.logit[row], 3)}, rank ${answer.rank[row]}`),
        E.el("div", { class: "bars" }, ...slot.top[row].flatMap(([word, p, before]) => [
          E.el("span", { class: "word", style: word === token ? "color: var(--answer); font-weight: 700" : null }, E.visible(word)),
          E.el("span", { class: "bar" }, E.el("i", { style: `width: ${(100 * p) / most}%` }), E.el("b", { style: `left: ${(100 * before) / most}%`, title: "without edits" })),
          E.el("span", { class: "number" }, p.toFixed(4))])));
    }
  };

  E.drawControls = () => {
    const place = document.getElementById("controls"), focused = document.activeElement?.id;
    if (!E.view.length || !E.views[E.state.view].controls) return E.fill(place);
    const some = noisy();
    const note = E.saved ? "A saved page redraws A1 − lam A2 only; what follows in the model, and its predictions, are those of the learned lam."
      : "The model is run again: later layers and predictions follow. The line in a bar is the probability without edits.";
    const old = document.getElementById("lam");
    const panels = E.el("div", { class: `slots${E.view.length > 1 ? " two" : ""}` }, ...E.view.map((_, at) => E.el("div", { "data-prediction": String(at) })));
    if (old && focused === "lam" && some.length) { // keep the slider that is being dragged
      place.querySelector(".slots").replaceWith(panels);
      return E.drawPrediction();
    }
    E.fill(place, ...(some.length ? [E.el("h2", {}, "The noise term"), slider(), ...(E.saved ? [] : some.map(headEdit)), E.el("p", { class: "soft" }, note)]
      : [E.el("p", { class: "soft" }, "One map per head: there is no noise term to scale.")]), panels);
    E.drawPrediction();
  };
})();
