"use strict";
// The task view: draw an example, and see every model answer it.
(() => {
  const E = Explorer;
  const FIELDS = {
    length: { min: 8, max: 512, step: 1 }, depth: { min: 0, max: 1, step: 0.05 }, noise: { min: 0, max: 1, step: 0.05 },
    near: { min: 0, max: 1, step: 0.05 }, needles: { min: 1, max: 16, step: 1 }, seed: { min: 0, max: 999999999, step: 1 },
  };
  let run = 0;

  const form = (slot) => {
    const drawn = slot?.drawn ?? {};
    const number = ([name, range]) => E.el("label", {}, name === "needles" && drawn.task === "many_shot" ? "classes" : name,
      E.el("input", { type: "number", name, ...Object.fromEntries(Object.entries(range).map(([n, v]) => [n, String(v)])),
        value: E.state[name] ?? "", placeholder: String(drawn[name] ?? "random"), onchange: (event) => draw({ [name]: event.target.value }) }));
    const tasks = slot?.tasks ?? ["needle"];
    return E.el("div", { class: "fields" },
      E.el("label", {}, "task", E.el("select", { name: "task", onchange: (event) => draw({ task: event.target.value }) },
        ...tasks.map((name) => E.el("option", { value: name, selected: name === (E.state.task ?? drawn.task) }, name)))),
      ...Object.entries(FIELDS).map(number),
      E.el("button", { type: "button", id: "draw", onclick: () => draw({ example: Number(E.state.example ?? 0) + 1 }) }, "draw another"));
  };
  const draw = (changes) => E.set({ text: "", row: "", ...changes });

  const card = (name, title) => E.el("div", { class: "card", "data-model": name }, E.el("h2", {}, title), E.el("p", { class: "soft" }, "…"));
  const answered = (box, slot) => {
    const row = slot.row, [best, p] = slot.top[row][0], wanted = slot.answer.token[row], right = best === wanted;
    E.fill(box, E.el("h2", {}, slot.title), E.el("p", { class: "verdict" }, `${right ? "✔" : "✘"} ${E.label(best)}`, E.el("span", { class: "soft" }, `  probability ${p.toFixed(3)}`)),
      E.el("p", {}, `expected ${E.label(wanted)}: probability ${slot.answer.probability[row].toFixed(3)}, rank ${slot.answer.rank[row]}`),
      slot.note ? E.el("p", { class: "soft" }, slot.note) : null,
      E.el("button", { type: "button", onclick: () => E.set({ view: "sequence", a: slot.name, "a.step": "", "a.head": "", "a.lam": "", "a.edits": "", row: "" }) }, "look inside"));
    box.dataset.right = String(right);
  };

  E.views.task = {
    title: "Task", controls: false,
    async draw(place) {
      const mine = ++run, slot = E.view[0];
      const models = E.start.models.filter((model) => !model.study);
      const cards = models.map((model) => card(model.name, model.title));
      const shown = slot && E.el("div", { class: "tokens", style: "background: var(--paper)" }, ...slot.tokens.flatMap((token, i) => [
        E.el("span", { class: `token ${slot.roles[i] ?? ""} ${(slot.relevant[slot.row] ?? []).includes(i) ? "relevant" : ""} ${i === slot.row ? "query" : ""}`,
          style: i > slot.row ? "color: var(--answer); font-weight: 700" : null }, E.visible(token)), slot.tokens.some((t) => t.startsWith(" ")) ? "" : " "]));
      E.fill(place, form(slot), slot ? E.el("p", { class: "soft" }, E.state.text ? "This is text. Draw an example to see the models answer it." :
        `Example ${slot.drawn.example} of ${slot.drawn.task}, for ${slot.title}. Outlined: the query. Green: the needle with the answer, and the answer to predict. Dashed: distractors.`) : null,
      shown, E.el("h3", {}, "what each model answers"), E.el("div", { class: "cards" }, ...cards));
      for (const [i, model] of models.entries()) { // one after the other: the newest request of a session wins
        const state = { ...E.state, a: model.name };
        for (const name of ["a.step", "a.head", "a.lam", "a.edits", "b", "b.step", "b.head", "b.lam", "b.edits", "row"]) delete state[name];
        try {
          const [found] = await E.source.view(state, "task");
          if (mine !== run) return;
          answered(cards[i], found);
        } catch (error) {
          if (mine !== run) return;
          E.fill(cards[i], E.el("h2", {}, model.title), E.el("p", { class: "soft" }, error.message));
        }
      }
    },
  };
})();
