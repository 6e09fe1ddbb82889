"use strict";
// The benchmark that is looked at, the filters, the table and the claims.
(() => {
  const { data, state, byId, host, unique, sorted, percent, numberOf, make, words, options, methods, alphas, temperatures, main, shown } =
    Page;
  const { OVER } = Figures;
  const AXES = { method: "Method", temperature: "Temperature", alpha: "Alpha" };

  function chooseBenchmark(index) {
    state.bench = data.benchmarks[index];
    const bench = state.bench;
    state.hidden = { method: new Set(), temperature: new Set(), alpha: new Set() };
    state.k = bench.n;
    state.measure = bench.measures.length ? bench.measures[0][0] : "";
    const timed = bench.cells.filter((cell) => cell.overhead !== null);
    const axes = Object.keys(OVER).filter(
      (axis) => unique(timed.map((cell) => cell[axis]).filter((value) => value !== undefined)).length > 1,
    );
    state.axis = axes[0] || "alpha";
    state.cell = null;
    const runs = bench.cells.reduce((sum, cell) => sum + cell.runs, 0);
    byId("about").textContent =
      `${bench.model}, ${numberOf(bench.count, "problem")}, ${numberOf(bench.cells.length, "setting")}, ${numberOf(runs, "run")}${bench.common ? "; " + bench.common : ""}.`;
    byId("notes").hidden = bench.notes.length === 0;
    byId("notes")
      .querySelector("ul")
      .replaceChildren(...bench.notes.map((note) => make("li", {}, note)));
    const ks = sorted(bench.cells.flatMap((cell) => Object.keys(cell.passed).map(Number))).filter((k) => k <= bench.n);
    byId("k").replaceChildren(
      ...options(
        ks.map((k) => [k, String(k)]),
        state.k,
      ),
    );
    byId("measure").replaceChildren(...options(bench.measures, state.measure));
    byId("axis").replaceChildren(
      ...options(
        (axes.length ? axes : ["alpha"]).map((axis) => [axis, OVER[axis]]),
        state.axis,
      ),
    );
    drawFilters();
    drawClaims();
    Samples.draw();
    redraw();
  }

  function drawFilters() {
    const values = { method: methods(), temperature: temperatures(), alpha: alphas() };
    byId("filters").replaceChildren(
      ...Object.entries(values)
        .filter(([, found]) => found.length)
        .map(([axis, found]) => {
          const boxes = found.map((value) =>
            make("input", {
              type: "checkbox",
              checked: true,
              name: axis,
              value: String(value),
              on: {
                change: (event) => {
                  state.hidden[axis][event.target.checked ? "delete" : "add"](value);
                  redraw();
                },
              },
            }),
          );
          const all = make(
            "button",
            {
              type: "button",
              on: {
                click: () => {
                  const none = state.hidden[axis].size === 0;
                  state.hidden[axis] = new Set(none ? found : []);
                  for (const box of boxes) box.checked = !none;
                  redraw();
                },
              },
            },
            "all / none",
          );
          return make(
            "fieldset",
            { id: `filter-${axis}` },
            make("legend", {}, AXES[axis]),
            ...boxes.map((box, i) => make("label", {}, box, ` ${found[i]}`)),
            found.length > 2 ? all : null,
          );
        }),
    );
  }

  function redraw() {
    for (const draw of [drawTable, Figures.curves, Figures.pareto, Figures.diversity, Figures.overhead]) draw(shown());
  }

  function drawTable(cells) {
    const k = state.k,
      some = main(cells).filter((cell) => cell.passed[k]);
    const place = host("table");
    if (!some.length)
      return place.replaceChildren(
        words(cells.length ? `Pass@${k} cannot be had from these runs.` : "The filters leave no cell."),
      );
    const heat = some.map((cell) => cell.passed[k][0]),
      low = Math.min(...heat),
      high = Math.max(...heat);
    const across = sorted(some.map((cell) => cell.temperature));
    const best = new Map(
      across.map((t) => [t, Math.max(...some.filter((cell) => cell.temperature === t).map((cell) => cell.passed[k][0]))]),
    );
    const rows = [];
    for (const method of unique(some.map((cell) => cell.method))) {
      const own = some.filter((cell) => cell.method === method);
      rows.push(make("tr", { class: "method" }, make("th", { scope: "rowgroup", colSpan: across.length + 1 }, method)));
      for (const alpha of sorted(own.map((cell) => cell.alpha))) {
        const line = across.map((t) => own.find((cell) => cell.alpha === alpha && cell.temperature === t));
        rows.push(
          make(
            "tr",
            {},
            make("th", { scope: "row" }, own[0].plain ? "" : `α = ${alpha}`),
            ...line.map((cell) => make("td", {}, cell ? tableCell(cell, k, best, low, high) : "–")),
          ),
        );
      }
    }
    const head = make("tr", {}, make("td", {}), ...across.map((t) => make("th", { scope: "col" }, `θ = ${t}`)));
    place.replaceChildren(
      make(
        "div",
        { class: "scroll", tabIndex: 0, role: "region", "aria-label": `Pass@${k} by setting` },
        make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)),
      ),
    );
  }

  function tableCell(cell, k, best, low, high) {
    const [value, se, from, to] = cell.passed[k];
    const top = value === best.get(cell.temperature);
    const button = make(
      "button",
      {
        type: "button",
        "data-cell": cell.key,
        "aria-pressed": String(state.cell === cell),
        on: { click: () => Samples.choose(cell) },
      },
      make("span", { class: top ? "best" : "" }, percent(value)),
      se === null ? null : ` ± ${percent(se)}`,
      from === null ? null : make("small", {}, `${percent(from)} – ${percent(to)}`),
    );
    button.style.setProperty("--warm", String(high > low ? Math.round((70 * (value - low)) / (high - low)) : 20));
    return button;
  }

  function drawClaims() {
    const signs = { holds: "✓", fails: "✗", open: "?", "cannot be said": "–" };
    const found = data.claims.filter((one) => one.benchmark === state.bench.name);
    host("claims").replaceChildren(
      ...found.map((one) =>
        make(
          "div",
          { class: `claim ${one.verdict in signs ? one.verdict.replaceAll(" ", "-") : ""}` },
          make("h3", {}, one.claim),
          make("p", {}, make("span", { class: "verdict" }, `${signs[one.verdict] || ""} ${one.verdict}. `), one.evidence),
        ),
      ),
    );
    byId("leftout").hidden = !data.left_out.length;
    host("leftout").replaceChildren(...data.left_out.map((one) => make("li", {}, `${one.run}: ${one.why}`)));
  }

  byId("benchmark").replaceChildren(
    ...options(
      data.benchmarks.map((bench, i) => [i, bench.name]),
      0,
    ),
  );
  byId("benchmark").addEventListener("change", (event) => chooseBenchmark(Number(event.target.value)));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("k").addEventListener("change", (event) => {
    state.k = Number(event.target.value);
    drawTable(shown());
  });
  byId("measure").addEventListener("change", (event) => {
    state.measure = event.target.value;
    Figures.diversity(shown());
  });
  byId("axis").addEventListener("change", (event) => {
    state.axis = event.target.value;
    Figures.overhead(shown());
  });
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== wide) {
      wide = innerWidth;
      redraw();
    }
  });
  chooseBenchmark(0);
})();
