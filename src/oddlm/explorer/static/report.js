// The report: the benchmark that is looked at, the filters, the table and the claims.
"use strict";

(() => {
  const { byId, el, unique, sorted } = oddlm;
  const { data, state, host, words, options, methods, alphas, temperatures, main, shown } = oddlm.cells;
  const { OVER, NOTHING, curves, pareto, diversity, overhead } = oddlm.figures;
  const AXES = { method: "Method", temperature: "Temperature", alpha: "Alpha" };

  function chooseBenchmark(index) {
    const bench = state.bench = data.benchmarks[index];
    state.hidden = { method: new Set(), temperature: new Set(), alpha: new Set() };
    state.k = bench.n;
    state.measure = bench.measures.length ? bench.measures[0][0] : "";
    const timed = bench.cells.filter((cell) => cell.overhead !== null);
    const axes = Object.keys(OVER).filter((axis) => unique(timed.map((cell) => cell[axis]).filter((value) => value !== undefined)).length > 1);
    state.axis = axes[0] || "alpha";
    state.cell = null;
    byId("about").textContent = bench.about;
    byId("notes").hidden = bench.notes.length === 0;
    byId("notes").querySelector("ul").replaceChildren(...bench.notes.map((note) => el("li", {}, note)));
    const ks = sorted(bench.cells.flatMap((cell) => Object.keys(cell.passed).map(Number))).filter((k) => k <= bench.n);
    byId("k").replaceChildren(...options(ks.map((k) => [k, String(k)]), state.k));
    byId("measure").replaceChildren(...options(bench.measures, state.measure));
    byId("axis").replaceChildren(...options((axes.length ? axes : ["alpha"]).map((axis) => [axis, OVER[axis]]), state.axis));
    filters();
    claims();
    oddlm.samples.draw();
    redraw();
  }

  function filters() {
    const values = { method: methods(), temperature: temperatures(), alpha: alphas() };
    byId("filters").replaceChildren(...Object.entries(values).filter(([, found]) => found.length).map(([axis, found]) => filter(axis, found)));
  }

  function filter(axis, found) {
    const hide = (value, off) => { state.hidden[axis][off ? "add" : "delete"](value); redraw(); };
    const boxes = found.map((value) => el("input", { type: "checkbox", checked: true, name: axis, value, onchange: (event) => hide(value, !event.target.checked) }));
    const all = el("button", {
      type: "button",
      onclick: () => {
        const none = state.hidden[axis].size === 0;
        state.hidden[axis] = new Set(none ? found : []);
        for (const box of boxes) box.checked = !none;
        redraw();
      },
    }, "all / none");
    return el("fieldset", { id: `filter-${axis}` }, el("legend", {}, AXES[axis]), boxes.map((box, i) => el("label", {}, box, ` ${found[i]}`)), found.length > 2 ? all : null);
  }

  function redraw() {
    for (const draw of [table, curves, pareto, diversity, overhead]) draw(shown());
  }

  function table(cells) {
    const k = state.k, some = main(cells).filter((cell) => cell.passed[k]), place = host("table");
    if (!some.length) return place.replaceChildren(words(cells.length ? `Pass@${k} is not available for these runs.` : NOTHING));
    const value = (cell) => cell.passed[k].value[0];
    const heat = some.map(value), low = Math.min(...heat), high = Math.max(...heat);
    const warmth = (cell) => (high > low ? Math.round((70 * (value(cell) - low)) / (high - low)) : 20);
    const across = sorted(some.map((cell) => cell.temperature));
    const best = new Map(across.map((t) => [t, Math.max(...some.filter((cell) => cell.temperature === t).map(value))]));
    const shownCell = (cell) => (cell ? tableCell(cell, k, warmth(cell), value(cell) === best.get(cell.temperature)) : "–");
    const rows = unique(some.map((cell) => cell.method)).flatMap((method) => {
      const own = some.filter((cell) => cell.method === method);
      const lines = sorted(own.map((cell) => cell.alpha)).map((alpha) => el("tr", {}, el("th", { scope: "row" }, own[0].plain ? "" : `α = ${alpha}`),
        across.map((t) => el("td", {}, shownCell(own.find((cell) => cell.alpha === alpha && cell.temperature === t))))));
      return [el("tr", { class: "method" }, el("th", { scope: "rowgroup", colspan: across.length + 1 }, method)), ...lines];
    });
    const head = el("tr", {}, el("td"), across.map((t) => el("th", { scope: "col" }, `θ = ${t}`)));
    return place.replaceChildren(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Pass@${k} by setting` }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows))));
  }

  function tableCell(cell, k, warmth, best) {
    const [mean, error, low, high] = cell.passed[k].text;
    const button = el("button", { type: "button", "data-cell": cell.key, "aria-pressed": String(state.cell === cell), onclick: () => oddlm.samples.choose(cell) },
      el("span", { class: best ? "best" : null }, mean), error === null ? null : ` ± ${error}`, low === null ? null : el("small", {}, `${low} – ${high}`));
    button.style.setProperty("--warm", String(warmth));
    return button;
  }

  function claims() {
    const signs = { holds: "✓", fails: "✗", open: "?", "insufficient data": "–" };
    const found = data.claims.filter((one) => one.benchmark === state.bench.name);
    host("claims").replaceChildren(...found.map((one) => el("div", { class: `claim ${one.verdict in signs ? one.verdict.replaceAll(" ", "-") : ""}` },
      el("h3", {}, one.claim), el("p", {}, el("span", { class: "verdict" }, `${signs[one.verdict] || ""} ${one.verdict}. `), one.evidence))));
    byId("leftout").hidden = !data.left_out.length;
    host("leftout").replaceChildren(...data.left_out.map((one) => el("li", {}, `${one.run}: ${one.why}`)));
  }

  function begin() {
    oddlm.theme();
    byId("benchmark").replaceChildren(...options(data.benchmarks.map((bench, i) => [i, bench.name]), 0));
    byId("benchmark").addEventListener("change", (event) => chooseBenchmark(Number(event.target.value)));
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("k").addEventListener("change", (event) => { state.k = Number(event.target.value); table(shown()); });
    byId("measure").addEventListener("change", (event) => { state.measure = event.target.value; diversity(shown()); });
    byId("axis").addEventListener("change", (event) => { state.axis = event.target.value; overhead(shown()); });
    let wide = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; redraw(); } });
    chooseBenchmark(0);
  }

  begin();
})();
