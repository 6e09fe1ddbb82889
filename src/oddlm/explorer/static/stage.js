// What is shown of a plain and a diverse run: the rows, the charts, and a sentence that says what one sees.
"use strict";

oddlm.Stage = class {
  constructor(moved) {
    const { byId, el } = oddlm;
    this.shown = null; // {title, task, plain, diverse}
    this.player = new oddlm.Player((steps) => { this.draw(steps); moved(); });
    this.rows = {
      plain: new oddlm.Rows(byId("plain"), "Plain sampling", () => "Each sample is drawn on its own."),
      diverse: new oddlm.Rows(byId("diverse"), "Diverse sampling", oddlm.Stage.how),
    };
    this.figures = [
      { field: "mean_force", title: "Force", words: "how hard the samples are pushed apart" },
      { field: "mean_entropy", title: "Entropy", words: "how uncertain the network is, in nats" },
    ].map((one) => ({ ...one, chart: null, place: el("div") }));
    this.matrices = { plain: new oddlm.charts.Matrix("Plain"), diverse: new oddlm.charts.Matrix("Diverse") };
    const figures = [
      ...this.figures.map(({ title, words, place }) => el("figure", { class: "figure" }, el("figcaption", {}, el("b", {}, title), ` ${words}`), place)),
      ...Object.values(this.matrices).map((one) => one.element),
    ];
    byId("charts").replaceChildren(el("h2", {}, "Step by step"), el("div", { class: "figures" }, figures));
    for (const button of document.querySelectorAll("input[name=view]")) {
      button.addEventListener("change", () => { this.view(button.value); moved(); });
    }
    this.chosen = "both";
    window.addEventListener("resize", () => { if (this.shown) this.extend(this.player.steps); });
  }

  // How a run makes its samples differ; the first time there is none.
  static how(run) {
    const { objective, alpha, alpha_end = 1, fork } = run ? run.start.params : {};
    const span = Number(alpha_end) < 1 ? ` in the first ${Math.round(100 * alpha_end)} % of the steps` : "";
    const settings = run ? `: ${oddlm.named(objective)}, alpha ${oddlm.visible(alpha)}${span}` : "";
    return `Each sample ${fork === true ? "has its own start and " : ""}is pushed away from the earlier ones${settings}.`;
  }

  view(name) {
    this.chosen = ["both", "diverse", "plain"].includes(name) ? name : "both";
    document.querySelector(`input[name=view][value=${this.chosen}]`).checked = true;
    oddlm.byId("columns").dataset.view = this.chosen;
    oddlm.byId("charts").dataset.view = this.chosen;
    if (this.shown) this.draw(this.player.steps);
  }

  // The runs, either of which may be missing while it has not begun.
  show(shown, steps) {
    this.shown = shown;
    for (const [name, rows] of Object.entries(this.rows)) if (shown[name]) rows.show(shown[name]);
    this.tell();
    this.extend(steps);
  }

  extend(steps) {
    const runs = Object.values(this.runs());
    this.series();
    this.player.extend(Math.max(1, ...runs.map((run) => run.total)), steps);
  }

  runs() {
    const { plain, diverse } = this.shown || {};
    return { ...(plain ? { plain } : {}), ...(diverse ? { diverse } : {}) };
  }

  // Steps that came until now.
  reached() {
    return Math.max(0, ...Object.values(this.runs()).map((run) => run.steps.length));
  }

  jump(steps) {
    this.player.pause();
    this.player.go(steps);
  }

  draw(steps) {
    oddlm.details.hide();
    const runs = this.runs();
    for (const [name, run] of Object.entries(runs)) {
      if (this.chosen !== "both" && this.chosen !== name) continue;
      this.rows[name].draw(steps);
      this.matrices[name].show(run.n, (a, b) => run.similarity(a, b, steps));
    }
    for (const { chart } of this.figures) if (chart) chart.moveCursor(Math.max(1, steps));
  }

  // The lines over the steps that came until now.
  series() {
    const runs = this.runs(), { LineChart, counts, legend, range } = oddlm.charts;
    const total = Math.max(1, ...Object.values(runs).map((run) => run.total));
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
    for (const figure of this.figures) {
      const lines = Object.entries(runs).map(([name, run]) => {
        const values = run.steps.map((frame) => mean(frame.samples.map((sample) => sample[figure.field])));
        return {
          name, slot: name === "plain" ? 0 : 1, dashed: name === "plain",
          summary: `from ${(values[0] || 0).toFixed(2)} to ${(values.at(-1) || 0).toFixed(2)}`,
          points: values.map((value, i) => ({ x: i + 1, y: value, words: `step ${i + 1}: ${value.toFixed(2)}` })),
        };
      });
      figure.chart = new LineChart({
        width: Math.max(200, figure.place.clientWidth || 320), height: 150, label: `${figure.title} over ${total} steps`,
        x: { ...counts(total), label: "step" }, y: range([0, ...lines.flatMap((line) => line.points.map((point) => point.y))], { floor: 0, ticks: 3 }),
        lines, pick: (point) => this.jump(point.x), across: true,
      });
      figure.place.replaceChildren(figure.chart.element, legend(lines));
    }
  }

  tell() {
    const { byId, visible } = oddlm;
    byId("question").textContent = visible(this.shown.title).replace(/↵\n/g, " ").slice(0, 300) || "(empty prompt)";
    byId("lead").textContent = this.lead();
    byId("fork-legend").hidden = !this.shown.diverse || !this.shown.diverse.forks(0);
    document.title = `${visible(this.shown.title).slice(0, 60)} · oddlm explorer`;
  }

  lead() {
    const { count, percent } = oddlm;
    const { plain, diverse } = this.runs();
    if (!plain || !diverse || !plain.end || !diverse.end) return "Two runs with the same model and the same noise: once plain, once with the samples pushed apart.";
    const n = plain.n, temperature = diverse.start.params.temperature;
    const repeats = plain.different === 1 ? `writes the same answer ${n} times` : `writes ${count(plain.different, "different answer")} in ${n} samples`;
    const one = plain.different === 1;
    const wrong = plain.right === null ? "" : plain.right === 0 ? (one ? ", and it is wrong" : ", all wrong") : one ? ", and it is correct" : `, ${plain.right} of them correct`;
    const right = diverse.right === null ? "" : diverse.right ? `, and ${diverse.right} of ${n} ${diverse.right === 1 ? "solves" : "solve"} the problem` : ", none of them correct";
    const set = Number.isFinite(temperature) ? ` (temperature ${temperature})` : "";
    return `Same model, same noise${set}: plain sampling ${repeats}${wrong}. Diverse sampling pushes the samples apart while they are ` +
      `written: ${count(diverse.different, "different answer")}${right}.`;
  }
};
