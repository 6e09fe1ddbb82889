"use strict";
// The four figures; each takes the cells that the filters leave, or says in words why it cannot be drawn.
const Figures = (() => {
  const { state, byId, host, unique, sorted, percent, signed, make, words, alphas, temperatures, cellOf, main, told } = Page;
  const OVER = { steps: "steps", n: "samples n", length: "tokens S", alpha: "alpha", temperature: "temperature" };
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const pick = (point) => Samples.choose(point.cell);

  // Bare objectives get the first colours, then methods with other settings, then explorers that push nothing.
  function methodSlot(method) {
    const rank = (cell) => (cell.plain ? 2 : cell.method === cell.objective ? 0 : 1);
    return unique([...state.bench.cells].sort((a, b) => rank(a) - rank(b)).map((cell) => cell.method))
      .filter((name) => name !== "plain")
      .indexOf(method);
  }

  const width = (place, most) => Math.max(280, Math.min(most, place.clientWidth || most));
  function panelWidth(place) {
    const whole = place.clientWidth || 900,
      columns = Math.max(1, Math.floor((whole + 14) / 314));
    return Math.max(260, Math.floor((whole - 14 * (columns - 1)) / columns));
  }

  // One colour per method where several push, else one per alpha; plain sampling in ink.
  function colouring(cells) {
    const pushing = unique(cells.filter((cell) => !cell.plain).map((cell) => cell.method));
    const several = pushing.length > 1 || cells.some((cell) => cell.plain && cell.method !== "plain");
    const slot = (cell) => (several ? methodSlot(cell.method) : cell.plain ? -1 : alphas().indexOf(cell.alpha));
    const name = (cell) => (several || cell.plain ? cell.method : `${cell.method} α ${cell.alpha}`);
    const thick = (cell) =>
      several && !cell.plain && alphas().length > 1 ? 0.55 + (0.9 * alphas().indexOf(cell.alpha)) / (alphas().length - 1) : 1;
    const hint = several && alphas().length > 1 ? "Thicker: larger alpha." : "";
    return {
      slot,
      thick,
      hint,
      entries: unique(cells.map(name)).map((label) => {
        const cell = cells.find((one) => name(one) === label);
        return { name: label, slot: slot(cell), dashed: cell.plain };
      }),
    };
  }

  function drawCurves(cells) {
    const some = main(cells).filter((cell) => Object.keys(cell.passed).length),
      place = host("curves");
    if (!some.length)
      return place.replaceChildren(words(cells.length ? "No Pass@k is known of these runs." : "The filters leave no cell."));
    const ks = (cell) =>
      Object.keys(cell.passed)
        .map(Number)
        .sort((a, b) => a - b);
    const { slot, thick, hint, entries } = colouring(some);
    const y = Charts.range(
      some.flatMap((cell) => ks(cell).map((k) => 100 * cell.passed[k][0])),
      0,
      100,
    );
    const n = state.bench.n,
      marked = unique([1, ...[1, 2, 3].map((i) => Math.round((i * n) / 4)), n])
        .filter((k) => k > 0)
        .map((k) => [k, String(k)]);
    const panels = make("div", { class: "panels" });
    for (const t of sorted(some.map((cell) => cell.temperature))) {
      const lines = some
        .filter((cell) => cell.temperature === t)
        .sort((a, b) => a.plain - b.plain)
        .map((cell) => ({
          name: cell.label,
          slot: slot(cell),
          thick: thick(cell),
          dashed: cell.plain,
          points: ks(cell).map((k) => ({ x: k, y: 100 * cell.passed[k][0], words: told(cell, k), cell })),
        }));
      panels.append(
        Charts.chart({
          width: panelWidth(place),
          height: 230,
          labels: { title: `θ = ${t}`, x: "k" },
          lines,
          marked,
          y,
          pick,
        }),
      );
    }
    place.replaceChildren(Charts.legend(entries, hint), panels);
  }

  function drawPareto(cells) {
    const n = state.bench.n,
      some = main(cells).filter((cell) => cell.passed[1] && cell.passed[n]),
      place = host("pareto");
    if (!cells.length) return place.replaceChildren(words("The filters leave no cell."));
    if (!some.length || n === 1)
      return place.replaceChildren(
        words(`Pass@1 (the share of right samples) beside Pass@${n} cannot be had from these runs.`),
      );
    const { slot, thick, hint, entries } = colouring(some);
    const lines = unique(some.map((cell) => `${cell.method}\n${cell.alpha}`)).map((key) => {
      const own = some.filter((cell) => `${cell.method}\n${cell.alpha}` === key).sort((a, b) => a.temperature - b.temperature);
      const points = own.map((cell) => ({
        x: 100 * cell.passed[1][0],
        y: 100 * cell.passed[n][0],
        low: bound(cell.passed[n][2]),
        high: bound(cell.passed[n][3]),
        cell,
        words: `θ = ${cell.temperature}: Pass@1 ${percent(cell.passed[1][0])} %, ${told(cell, n)}`,
      }));
      return {
        name: own[0].plain ? own[0].method : `${own[0].method} α ${own[0].alpha}`,
        slot: slot(own[0]),
        thick: thick(own[0]),
        dashed: own[0].plain,
        marks: true,
        points,
      };
    });
    const x = Charts.range(
      some.map((cell) => 100 * cell.passed[1][0]),
      0,
      100,
    );
    const y = Charts.range(
      some
        .flatMap((cell) => [cell.passed[n][0], cell.passed[n][2], cell.passed[n][3]])
        .filter((one) => one !== null)
        .map((one) => 100 * one),
      0,
      100,
    );
    const chart = Charts.chart({
      width: width(place, 900),
      height: 400,
      x,
      y,
      labels: { title: `Pass@${n} (%)`, x: "Pass@1: right samples (%)" },
      lines,
      pick,
    });
    place.replaceChildren(
      Charts.legend(
        entries.map((entry) => ({ ...entry, marks: true })),
        hint,
      ),
      chart,
    );
  }
  const bound = (share) => (share === null ? null : 100 * share);

  function drawDiversity(cells) {
    const name = state.measure,
      place = host("diversity"),
      about = state.bench.measures.find(([one]) => one === name);
    byId("meaning").textContent = about ? about[2] + "." : "";
    byId("measure").parentElement.hidden = !about;
    const some = main(cells).filter((cell) => !cell.plain && cell.diversity[name]);
    if (!about) return place.replaceChildren(words("No measure of diversity is known of these runs."));
    if (!some.length)
      return place.replaceChildren(
        words("The runs shown have no method that pushes samples apart, or this measure is not known of them."),
      );
    const ranks = alphas(),
      marked = ranks.map((alpha, i) => [i, String(alpha)]);
    const base = (cell) => cellOf(cell.baseline)?.diversity[name]?.[0];
    const y = Charts.range(
      some.flatMap((cell) => [...cell.diversity[name].slice(0, 1), base(cell)]).filter((value) => value !== undefined),
      0,
    );
    const panels = make("div", { class: "panels" }),
      met = new Set();
    for (const method of unique(some.map((cell) => cell.method))) {
      const lines = sorted(some.filter((cell) => cell.method === method).map((cell) => cell.temperature)).flatMap((t) => {
        met.add(t);
        const own = some.filter((cell) => cell.method === method && cell.temperature === t).sort((a, b) => a.alpha - b.alpha),
          slot = temperatures().indexOf(t);
        const points = own.map((cell) => ({
          x: ranks.indexOf(cell.alpha),
          y: cell.diversity[name][0],
          words: `α = ${cell.alpha}: ${cell.diversity[name][0].toFixed(3)}`,
          cell,
        }));
        const level = base(own[0]),
          plain = cellOf(own[0].baseline);
        const flat =
          level === undefined
            ? []
            : [
                {
                  name: `θ = ${t}, ${plain.method}`,
                  slot,
                  dashed: true,
                  points: [0, ranks.length - 1].map((x) => ({ x, y: level, words: level.toFixed(3), cell: plain })),
                },
              ];
        return [...flat, { name: `θ = ${t}`, slot, marks: true, points }];
      });
      panels.append(
        Charts.chart({
          width: panelWidth(place),
          height: 260,
          labels: { title: method, x: "alpha" },
          lines,
          marked,
          y,
          pick,
        }),
      );
    }
    const entries = sorted(met).map((t) => ({ name: `θ = ${t}`, slot: temperatures().indexOf(t), marks: true }));
    place.replaceChildren(Charts.legend(entries), panels);
  }

  function drawOverhead(cells) {
    const axis = state.axis,
      place = host("overhead");
    const some = cells.filter((cell) => cell.overhead !== null && !cell.plain && cell[axis] !== undefined);
    byId("axis").parentElement.hidden = !some.length;
    if (!some.length)
      return place.replaceChildren(
        words(
          cells.length
            ? "Overhead cannot be had: it takes timed runs of a method and of plain sampling that are otherwise alike."
            : "The filters leave no cell.",
        ),
      );
    const values = sorted(some.map((cell) => cell[axis])),
      order = unique(state.bench.cells.filter((cell) => !cell.plain).map((cell) => cell.objective));
    const lines = unique(some.map((cell) => cell.objective)).map((objective) => {
      const own = some.filter((cell) => cell.objective === objective);
      const points = values
        .map((value) => [value, own.filter((cell) => cell[axis] === value)])
        .filter(([, found]) => found.length)
        .map(([value, found]) => {
          const share = mean(found.map((cell) => cell.overhead));
          return {
            x: values.indexOf(value),
            y: 100 * share,
            words: `${OVER[axis]} ${value}: ${signed(share)} %, mean of ${found.length} cells`,
            cell: found[0],
          };
        });
      return { name: objective, slot: order.indexOf(objective), marks: true, points };
    });
    const y = Charts.range([0, ...lines.flatMap((line) => line.points.map((point) => point.y))]);
    const chart = Charts.chart({
      width: width(place, 640),
      height: 300,
      labels: { title: "overhead (%)", x: OVER[axis] },
      lines,
      marked: values.map((value, i) => [i, String(value)]),
      y,
      pick,
    });
    place.replaceChildren(Charts.legend(lines), chart);
  }

  return { OVER, curves: drawCurves, pareto: drawPareto, diversity: drawDiversity, overhead: drawOverhead };
})();
