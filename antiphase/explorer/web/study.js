"use strict";
// The study view: the table of verdicts; a cell opens its prediction, gates, numbers and picture.
(() => {
  const E = Explorer;
  let table = null;

  const cell = (row, column) => {
    const found = row.cells[column], reading = table.readings[column].name;
    if (!found) return E.el("td", {}, "–");
    const chosen = E.state.test === String(row.test) && E.state.reading === reading;
    return E.el("td", { class: `${found.verdict.replace(" ", "-")}${chosen ? " chosen" : ""}` },
      E.el("button", { type: "button", "data-test": `${row.test} ${reading}`, onclick: () => E.set({ test: row.test, reading }, false) }, found.text));
  };

  const detail = (place, test) => {
    const mine = test.predictions.rows.filter((_, i) => !E.state.reading || test.readings[i] === E.state.reading);
    const figures = test.figures.map((figure) => ({ figure, place: E.el("div", { class: "chart" }) }));
    E.fill(place, E.el("h2", {}, test.title), E.el("p", {}, test.question), ...test.notes.map((note) => E.el("p", { class: "soft" }, note)),
      E.el("h3", {}, `predictions${E.state.reading ? ` of ${E.state.reading}` : ""}`), E.table(test.predictions.columns, mine),
      E.el("h3", {}, "gates: what must hold before a prediction is judged"), E.table(test.gates.columns, test.gates.rows),
      E.el("div", { class: "charts" }, ...figures.map((drawn) => drawn.place)),
      E.el("h3", {}, "numbers by seed"), E.table(test.by_seed.columns, test.by_seed.rows),
      E.el("h3", {}, "arms"), E.el("div", { class: "scroll" }, E.el("table", {}, ...test.arms.map((arm) => E.el("tr", {}, E.el("th", {}, arm.name), E.el("td", {}, arm.recipe || "the common recipe"),
        E.el("td", {}, ...(arm.models.length ? arm.models.map((name) => E.el("button", { type: "button", "data-open": name,
          onclick: () => E.set({ view: "map", a: name, "a.step": "", "a.head": "", "a.lam": "", "a.edits": "" }) }, `open ${name}`))
          : [E.el("span", { class: "soft" }, "not among the explorer's models")])))))),
      E.el("p", { class: "soft" }, "Run it again: ", E.el("code", {}, test.command)),
      E.el("button", { type: "button", onclick: () => E.download(`test-${test.test}.json`, JSON.stringify(test, null, 1), "application/json") }, "JSON"));
    for (const drawn of figures) {
      const { title, xaxis, yaxis, ...rest } = drawn.figure.layout;
      for (const trace of drawn.figure.data) { // drawn for paper: dots and error bars are dark
        if (trace.marker?.color === "#1b1f24") trace.marker.color = E.named("ink");
        if (trace.error_y) trace.error_y.color = E.named("soft");
      }
      delete rest.template; delete rest.height; delete rest.margin;
      Plotly.newPlot(drawn.place, drawn.figure.data, E.layout({ ...rest, title, xaxis: { ...xaxis, automargin: true }, yaxis: { ...yaxis, automargin: true } }), E.config);
    }
  };

  E.views.study = {
    title: "Study", controls: false, alone: true,
    async draw(place) {
      table ??= await E.source.study();
      const below = E.el("div", { "data-detail": "" });
      E.fill(place, E.el("p", { class: "soft" }, `${table.name}. ${table.status} Click a cell for what stands behind it.`),
        E.el("div", { class: "scroll" }, E.el("table", { class: "study" },
          E.el("tr", {}, E.el("th", {}, "test"), ...table.readings.map((reading) => E.el("th", { title: reading.says }, reading.name))),
          ...table.rows.map((row) => E.el("tr", {}, E.el("th", { title: row.question }, row.title), ...table.readings.map((_, i) => cell(row, i)))))), below);
      if (E.state.test) {
        const wanted = E.state.test, test = await E.source.test(wanted);
        if (wanted === E.state.test && E.state.view === "study") detail(below, test);
      }
    },
  };
})();
