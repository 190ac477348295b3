"use strict";
// The training view: what a run logs, live while it trains, and its weights at milestones.
(() => {
  const E = Explorer;
  const COLOURS = ["positive", "negative", "answer", "soft", "ink"], DASHES = ["solid", "dash", "dot", "dashdot"];
  let timer = null;

  const chart = (title, series) => {
    const place = E.el("div", { class: "chart", "data-chart": title });
    const names = Object.keys(series).filter((name) => series[name]?.length);
    if (!names.length) return null;
    queueMicrotask(() => Plotly.newPlot(place, names.map((name, i) => ({
      x: series[name].map((point) => point[0]), y: series[name].map((point) => point[1]), name: E.plain(name), mode: series[name].length < 12 ? "lines+markers" : "lines",
      line: { color: E.named(COLOURS[i % COLOURS.length]), dash: DASHES[Math.floor(i / COLOURS.length) % DASHES.length] } })),
    E.layout({ title: { text: title, font: { size: 13 } }, xaxis: { title: { text: "step" } }, yaxis: {}, showlegend: names.length > 1, legend: { orientation: "h", y: -0.25 } }), E.config));
    return place;
  };
  const pick = (series, test) => Object.fromEntries(Object.entries(series).filter(([name]) => test(name)));

  const milestones = (run) => {
    if (!run.milestones.length) return E.el("p", { class: "soft" }, "The run keeps no milestones yet; a recipe's field `milestones` names their steps.");
    const now = E.state.a === run.name && E.state["a.step"] ? run.milestones.indexOf(Number(E.state["a.step"])) : run.milestones.length - 1;
    const at = Math.max(0, now), shown = E.el("output", {}, `step ${run.milestones[at]}`);
    return E.el("div", { class: "row" }, E.el("label", { class: "lambda" }, "milestone", E.el("input", {
      type: "range", id: "milestone", min: "0", max: String(run.milestones.length - 1), step: "1", value: String(at),
      oninput: (event) => { shown.textContent = `step ${run.milestones[event.target.value]}`; },
      onchange: (event) => E.set({ a: run.name, "a.step": run.milestones[event.target.value] }) }), shown),
    E.el("button", { type: "button", "data-open-step": "", onclick: () => E.set({ view: "map", a: run.name, "a.step": run.milestones[document.getElementById("milestone").value] }) }, "open its maps"));
  };

  E.views.training = {
    title: "Training", controls: false, alone: true,
    async draw(place) {
      clearTimeout(timer);
      const runs = E.start.models.filter((model) => model.run);
      if (!runs.length) return E.fill(place, E.el("p", {}, "No run folder was named on the command line. Start it as "), E.el("code", {}, "antiphase explore runs/NAME"));
      const name = runs.some((model) => model.name === E.state.run) ? E.state.run : runs[0].name;
      const run = await E.source.training(name);
      if (E.state.view !== "training") return;
      const last = Math.max(0, ...Object.values(run.series).map((points) => points.at(-1)[0]));
      E.fill(place, E.el("div", { class: "fields" }, E.el("label", {}, "run", E.el("select", { id: "run", onchange: (event) => E.set({ run: event.target.value }, false) },
        ...runs.map((model) => E.el("option", { value: model.name, selected: model.name === name }, model.title)))),
      E.el("span", { class: "soft", "data-progress": "" }, run.finished ? `finished at step ${last}` : `training: step ${last} of at most ${run.steps}`),
      E.el("button", { type: "button", onclick: () => E.download("run.json", JSON.stringify(run, null, 1), "application/json") }, "JSON")),
      milestones(run), E.el("div", { class: "charts" },
        chart("loss", pick(run.series, (n) => n === "loss" || n === "held_out_loss")), chart("held-out accuracy", pick(run.series, (n) => n === "held_out_accuracy")),
        chart("lam per layer", pick(run.series, (n) => n.startsWith("lam_"))), chart("agreement: correlation of A1 and A2 on irrelevant tokens", run.agreement)) ?? "");
      if (!run.finished || !run.complete) timer = setTimeout(() => { if (E.state.view === "training" && document.activeElement?.id !== "milestone") E.draw(); }, run.complete ? 2000 : 100);
    },
  };
})();
