"use strict";
// The page: where data come from, what is asked for and when, tabs, keyboard and theme.
(() => {
  const E = Explorer, at = (id) => document.getElementById(id);
  const session = Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16)).join("");
  const SENT = ["a", "b", "text", "row", "task", "length", "depth", "noise", "near", "needles", "seed", "example",
    ...["step", "head", "lam", "edits"].flatMap((name) => [`a.${name}`, `b.${name}`])];
  const PER_MODEL = ["step", "head", "lam", "edits"];

  const ask = async (address, options = {}) => {
    let response;
    try {
      response = await fetch(address, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("the server does not answer; is antiphase explore still running?");
    }
    const content = await response.json();
    if (!response.ok) throw Object.assign(new Error(content?.error ?? response.statusText), { status: response.status });
    return content;
  };
  const served = {
    start: () => ask("api/start"),
    view: (state, part = "", signal = undefined) => ask("api/view", {
      method: "POST", signal, headers: { "content-type": "application/json", "x-session": `${session}${part}` },
      body: JSON.stringify(Object.fromEntries(SENT.filter((name) => state[name]).map((name) => [name, state[name]]))) }),
    study: () => ask("api/study"),
    test: (number) => ask(`api/study/${Number(number)}`),
    training: (run) => ask(`api/training?run=${encodeURIComponent(run)}`, { headers: { "x-session": session } }),
    progress: () => ask("api/progress"),
  };
  // A saved page has the answers inside: views by model and example, with the maps of all heads.
  const saved = (data) => ({
    start: async () => data.start,
    view: async (state) => ["a", "b"].filter((letter) => state[letter]).map((letter) => {
      const views = data.views[state[letter]];
      if (!views) throw new Error(`${state[letter]}: is not in this page`);
      const found = views[Number(state.example ?? 0) % views.length];
      const head = state[`${letter}.head`];
      return { ...found, row: Number(state.row ?? found.row) % found.tokens.length, head: head && found.heads[head] ? head.split(".").map(Number) : found.head };
    }),
    progress: async () => null,
  });

  // Ask for the view of the state; of several requests the newest wins.
  let number = 0, stop = null;
  E.refresh = async () => {
    const mine = ++number;
    stop?.abort();
    stop = new AbortController();
    if (E.views[E.state.view].alone) return E.draw();
    const waiting = setTimeout(() => watch(mine), 250);
    try {
      const wanted = { ...E.state }, found = await E.source.view(wanted, "", stop.signal);
      if (mine !== number) return;
      E.view = found.map((slot, i) => ({ ...slot, applied: E.saved ? "" : wanted[`${E.slots()[i]}.lam`] ?? "" }));
      say("");
      E.hovered = undefined;
      E.draw();
    } catch (error) {
      if (mine !== number || error.name === "AbortError" || error.status === 409) return;
      say(error.message, true);
    } finally {
      clearTimeout(waiting);
    }
  };
  E.settled = () => document.body.dataset.done === String(number); // the newest request is answered
  const watch = async (mine) => { // progress while a model loads or computes
    while (mine === number && !E.settled()) {
      const now = await E.source.progress().catch(() => null);
      if (mine !== number || E.settled()) return;
      say(now ? `loading ${now.loading}: ${now.seconds.toFixed(1)} s` : "computing …", false, true);
      await new Promise((resume) => setTimeout(resume, 300));
    }
  };
  const say = (text, error = false, busy = false) => {
    if (!busy) document.body.dataset.done = String(number);
    at("status").classList.toggle("error", error);
    E.fill(at("status"), busy ? E.el("progress") : null, text ? ` ${text}` : null);
  };

  E.draw = () => {
    drawTabs();
    drawSource();
    const view = E.views[E.state.view];
    at("view").onpointerover = at("view").onpointerleave = at("view").onclick = null;
    if (view.alone) { E.fill(at("controls")); say(""); }
    else E.drawControls();
    return Promise.resolve(view.draw(at("view"))).catch((error) => { if (error.status !== 409) say(error.message, true); });
  };

  const shownViews = () => Object.keys(E.views).filter((name) => !E.saved || ["sequence", "map"].includes(name));
  const drawTabs = () => E.fill(at("tabs"), ...shownViews().map((name) => E.el("button", {
    type: "button", role: "tab", "data-view": name, "aria-selected": String(name === E.state.view), onclick: () => open(name) }, E.views[name].title)));
  const open = (name) => E.set({ view: name });

  const cleared = (letter) => Object.fromEntries(PER_MODEL.map((name) => [`${letter}.${name}`, ""]));
  const select = (letter) => {
    const option = (model) => E.el("option", { value: model.name, selected: model.name === E.state[letter] }, model.title);
    const own = E.start.models.filter((model) => !model.study), study = E.start.models.filter((model) => model.study);
    return E.el("label", {}, letter === "a" ? "model" : "beside", E.el("select", { id: letter, onchange: (event) => {
      if (letter === "b" && !event.target.value) E.active = "a";
      E.set({ ...cleared(letter), [letter]: event.target.value, row: "" });
    } }, letter === "b" ? E.el("option", { value: "" }, "none") : null, ...own.map(option),
    study.length ? E.el("optgroup", { label: "models of the study" }, ...study.map(option)) : null));
  };
  const drawSource = () => {
    if (document.activeElement?.closest?.("#source") && document.activeElement.id === "text") return;
    const alone = E.views[E.state.view].alone, slot = E.view[0];
    if (alone) return E.fill(at("source"));
    const drawn = slot?.drawn ?? {}, count = E.saved ? E.start.examples : null;
    const example = Number(E.state.example ?? 0);
    const step = (by) => E.set({ text: "", row: "", example: Math.max(0, count ? (example + by + count) % count : example + by) });
    E.nextExample = () => step(1);
    const pick = E.el("label", {}, E.state.text ? "example" : `example ${example}${drawn.task ? ` of ${drawn.task}` : ""}`, E.el("span", { class: "row" },
      E.el("button", { type: "button", "aria-label": "previous example", onclick: () => step(-1) }, "‹"),
      E.el("button", { type: "button", id: "next", "aria-label": "next example", onclick: () => step(1) }, "›")));
    const text = E.saved ? null : E.el("form", { onsubmit: (event) => { event.preventDefault(); const input = at("text"); input.blur(); E.set({ text: input.value.trim(), row: "" }); } },
      E.el("label", {}, "text, in the model's tokens (empty: an example of the task)", E.el("input", { type: "search", id: "text", autocomplete: "off", spellcheck: "false",
        value: E.state.text ?? "", placeholder: slot ? slot.tokens.join(slot.tokens.some((t) => t.startsWith(" ")) ? "" : " ").slice(0, 120) : "" })),
      E.el("button", { type: "submit" }, "show"));
    E.fill(at("source"), select("a"), select("b"), pick, text);
  };

  // Keyboard.
  const move = (layers, heads) => {
    const letter = E.slots().includes(E.active) ? E.active : "a", slot = E.place(letter);
    if (!slot) return;
    const layer = Math.max(0, Math.min(slot.layers.length - 1, slot.head[0] + layers));
    const count = slot.layers[layer], head = (Math.min(slot.head[1], count - 1) + heads + count) % count;
    slot.head = [layer, head]; // a second key press goes on from here
    E.set(E.dots(letter, "head", `${layer}.${head}`));
  };
  const moveRow = (by) => {
    const slot = E.view[0];
    if (!slot) return;
    const row = Math.max(0, Math.min(slot.tokens.length - 1, E.rowOf(slot) + by));
    E.hovered = undefined;
    E.set({ row }, false);
  };
  const KEYS = {
    ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1), ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0),
    j: () => moveRow(1), k: () => moveRow(-1), n: () => E.nextExample?.(), "/": () => at("text")?.focus(),
    s: () => { if (E.slots().length > 1) { E.active = E.active === "a" ? "b" : "a"; E.markActive(); } },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return document.activeElement?.blur();
    if (event.target.closest("input, select, textarea")) return;
    const views = shownViews(), tab = views[Number(event.key) - 1];
    const action = tab ? () => open(tab) : E.views[E.state.view].alone ? null : KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  // Light and dark: as the system has it, or as chosen here.
  const remember = (name, value) => { try { return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value); } catch { return null; } };
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const retint = () => { E.readColours(); E.draw(); };
  at("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    remember("theme", document.documentElement.dataset.theme);
    retint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retint);

  const address = () => {
    E.state = E.readAddress();
    if (!shownViews().includes(E.state.view)) E.state.view = "sequence";
    const names = E.start.models.map((model) => model.name);
    if (!E.state.a) E.state.a = E.start.first[0] ?? names[0];
    if (!location.hash && E.start.first[1] && innerWidth > 900) E.state.b = E.start.first[1];
    const single = (E.state["a.lam"] ?? E.state["b.lam"] ?? "").match(/^(\d+):/);
    E.lamLayer = single ? single[1] : "all"; // the slider shows a layer that a link has changed
    E.writeAddress();
    return E.refresh();
  };
  addEventListener("hashchange", address);

  (async () => {
    const theme = remember("theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    E.readColours();
    const inside = at("saved");
    E.saved = inside ? JSON.parse(inside.textContent) : null;
    E.source = E.saved ? saved(E.saved) : served;
    try {
      E.start = await E.source.start();
    } catch (error) {
      return say(error.message, true);
    }
    return address();
  })();
})();
