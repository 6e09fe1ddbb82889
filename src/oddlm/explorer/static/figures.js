// The four figures of the report; each takes the cells that the filters leave, or says why it cannot be drawn.
"use strict";

oddlm.figures = (() => {
  const { byId, el, unique, sorted, count } = oddlm;
  const { state, host, words, alphas, temperatures, cellOf, main, passed } = oddlm.cells;
  const { LineChart, legend, range, stops, counts } = oddlm.charts;
  const OVER = { steps: "steps", n: "samples (n)", length: "length (tokens)", alpha: "alpha", temperature: "temperature" };
  const NOTHING = "No setting matches the filters.";
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const pick = (point) => oddlm.samples.choose(point.cell);

  // Bare objectives get the first colours, then methods with other settings, then explorers that push nothing.
  function methodSlot(method) {
    const rank = (cell) => (cell.plain ? 2 : cell.method === cell.objective ? 0 : 1);
    return unique([...state.bench.cells].sort((a, b) => rank(a) - rank(b)).map((cell) => cell.method)).filter((name) => name !== "plain").indexOf(method);
  }

  const width = (place, most) => Math.max(280, Math.min(most, place.clientWidth || most));
  function panelWidth(place) {
    const whole = place.clientWidth || 900, columns = Math.max(1, Math.floor((whole + 14) / 314));
    return Math.max(260, Math.floor((whole - 14 * (columns - 1)) / columns));
  }

  // One colour per method where several push, else one per alpha; plain sampling in ink.
  function colouring(cells) {
    const pushing = unique(cells.filter((cell) => !cell.plain).map((cell) => cell.method));
    const several = pushing.length > 1 || cells.some((cell) => cell.plain && cell.method !== "plain");
    const scaled = several && alphas().length > 1;
    const slot = (cell) => (several ? methodSlot(cell.method) : cell.plain ? -1 : alphas().indexOf(cell.alpha));
    const name = (cell) => (several || cell.plain ? cell.method : `${cell.method} α ${cell.alpha}`);
    const thick = (cell) => (scaled && !cell.plain ? 0.55 + (0.9 * alphas().indexOf(cell.alpha)) / (alphas().length - 1) : 1);
    const entries = unique(cells.map(name)).map((label) => {
      const cell = cells.find((one) => name(one) === label);
      return { name: label, slot: slot(cell), dashed: cell.plain };
    });
    return { slot, thick, hint: scaled ? "Thicker lines: larger alpha." : "", entries };
  }

  function curves(cells) {
    const some = main(cells).filter((cell) => Object.keys(cell.passed).length), place = host("curves");
    if (!some.length) return place.replaceChildren(words(cells.length ? "Pass@k is not available for these runs." : NOTHING));
    const ks = (cell) => sorted(Object.keys(cell.passed).map(Number));
    const { slot, thick, hint, entries } = colouring(some);
    const y = range(some.flatMap((cell) => ks(cell).map((k) => passed(cell, k).mean)), { floor: 0, ceiling: 100 });
    const panel = (t) => new LineChart({
      width: panelWidth(place), height: 230, title: `θ = ${t}`, label: `Pass@k in percent over k, θ = ${t}`, x: { ...counts(state.bench.n), label: "k" }, y, pick,
      lines: some.filter((cell) => cell.temperature === t).sort((a, b) => a.plain - b.plain).map((cell) => ({
        name: cell.label, slot: slot(cell), thick: thick(cell), dashed: cell.plain,
        points: ks(cell).map((k) => ({ x: k, y: passed(cell, k).mean, words: passed(cell, k).words, cell })),
      })),
    }).element;
    return place.replaceChildren(legend(entries, hint), el("div", { class: "panels" }, sorted(some.map((cell) => cell.temperature)).map(panel)));
  }

  function pareto(cells) {
    const n = state.bench.n, some = main(cells).filter((cell) => cell.passed[1] && cell.passed[n]), place = host("pareto");
    if (!cells.length) return place.replaceChildren(words(NOTHING));
    if (!some.length || n === 1) return place.replaceChildren(words("This chart needs Pass@1 (the share of correct samples) and Pass@n for n above 1; these runs do not have both."));
    const { slot, thick, hint, entries } = colouring(some);
    const line = (cell) => `${cell.method}\n${cell.alpha}`;
    const lines = unique(some.map(line)).map((key) => {
      const own = some.filter((cell) => line(cell) === key).sort((a, b) => a.temperature - b.temperature), [first] = own;
      const points = own.map((cell) => {
        const one = passed(cell, 1), { mean: y, low, high, words: told } = passed(cell, n);
        return { x: one.mean, y, low, high, cell, words: `θ = ${cell.temperature}: ${one.words}, ${told}` };
      });
      return { name: first.plain ? first.method : `${first.method} α ${first.alpha}`, slot: slot(first), thick: thick(first), dashed: first.plain, marks: true, points };
    });
    const points = lines.flatMap((one) => one.points);
    const x = range(points.map((point) => point.x), { floor: 0, ceiling: 100 });
    const y = range(points.flatMap((point) => [point.y, point.low, point.high]).filter((one) => one !== null), { floor: 0, ceiling: 100 });
    const chart = new LineChart({
      width: width(place, 900), height: 400, title: `Pass@${n} (%)`, label: `Pass@${n} over Pass@1`, x: { ...x, label: "Pass@1: correct samples (%)" }, y, lines, pick,
    });
    return place.replaceChildren(legend(entries.map((entry) => ({ ...entry, marks: true })), hint), chart.element);
  }

  function diversity(cells) {
    const name = state.measure, place = host("diversity"), about = state.bench.measures.find(([one]) => one === name);
    byId("meaning").textContent = about ? `${about[2]}.` : "";
    byId("measure").parentElement.hidden = !about;
    const some = main(cells).filter((cell) => !cell.plain && cell.diversity[name]);
    if (!about) return place.replaceChildren(words("No diversity measure is available for these runs."));
    if (!some.length) return place.replaceChildren(words("No run shown pushes samples apart and has this measure."));
    const ranks = alphas(), x = { ...stops(ranks.map((alpha, i) => [i, String(alpha)])), label: "alpha" };
    const base = (cell) => cellOf(cell.baseline)?.diversity[name];
    const y = range(some.flatMap((cell) => [cell.diversity[name], base(cell)]).filter(Boolean).map((one) => one.value), { floor: 0 });
    const linesOf = (method) => (t) => {
      const own = some.filter((cell) => cell.method === method && cell.temperature === t).sort((a, b) => a.alpha - b.alpha);
      if (!own.length) return [];
      const slot = temperatures().indexOf(t), level = base(own[0]), plain = cellOf(own[0].baseline);
      const points = own.map((cell) => ({ x: ranks.indexOf(cell.alpha), y: cell.diversity[name].value, words: `α = ${cell.alpha}: ${cell.diversity[name].text}`, cell }));
      const flat = level && [0, ranks.length - 1].map((at) => ({ x: at, y: level.value, words: level.text, cell: plain }));
      return [...(flat ? [{ name: `θ = ${t}, ${plain.method}`, slot, dashed: true, points: flat }] : []), { name: `θ = ${t}`, slot, marks: true, points }];
    };
    const panels = unique(some.map((cell) => cell.method)).map((method) => new LineChart({
      width: panelWidth(place), height: 260, title: method, label: `${about[1]} over alpha, ${method}`, x, y, lines: temperatures().flatMap(linesOf(method)), pick,
    }).element);
    const entries = sorted(some.map((cell) => cell.temperature)).map((t) => ({ name: `θ = ${t}`, slot: temperatures().indexOf(t), marks: true }));
    return place.replaceChildren(legend(entries), el("div", { class: "panels" }, panels));
  }

  function overhead(cells) {
    const axis = state.axis, place = host("overhead");
    const some = cells.filter((cell) => cell.overhead !== null && !cell.plain && cell[axis] !== undefined);
    byId("axis").parentElement.hidden = !some.length;
    if (!some.length) {
      return place.replaceChildren(words(cells.length ? "Overhead is not available: it needs timed runs of a method and of plain sampling with otherwise equal settings." : NOTHING));
    }
    const values = sorted(some.map((cell) => cell[axis])), order = unique(state.bench.cells.filter((cell) => !cell.plain).map((cell) => cell.objective));
    const lines = unique(some.map((cell) => cell.objective)).map((objective) => {
      const points = values.map((value) => [value, some.filter((cell) => cell.objective === objective && cell[axis] === value)]).filter(([, found]) => found.length)
        .map(([value, found]) => {
          const more = 100 * mean(found.map((cell) => cell.overhead));
          return { x: values.indexOf(value), y: more, words: `${OVER[axis]} ${value}: ${more < 0 ? "" : "+"}${more.toFixed(1)} %, mean of ${count(found.length, "setting")}`, cell: found[0] };
        });
      return { name: objective, slot: order.indexOf(objective), marks: true, points };
    });
    const chart = new LineChart({
      width: width(place, 640), height: 300, title: "overhead (%)", label: `Overhead in percent over ${OVER[axis]}`, lines, pick,
      x: { ...stops(values.map((value, i) => [i, String(value)])), label: OVER[axis] }, y: range([0, ...lines.flatMap((line) => line.points.map((point) => point.y))]),
    });
    return place.replaceChildren(legend(lines), chart.element);
  }

  return { OVER, NOTHING, curves, pareto, diversity, overhead };
})();
