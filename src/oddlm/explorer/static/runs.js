// The runs page: what the store holds, down to every sample.
"use strict";

(() => {
  const { byId, el, visible, notice, percent, count } = oddlm;
  const PAGE = 100; // problems at a time
  let runs = [], total = 0, chosen = null, asked = null; // the run and the problem that were picked last

  const COLUMNS = [
    ["run", (run) => run.id], ["task", (run) => run.task || "none"], ["model", (run) => run.model], ["objective", (run) => run.method],
    ["alpha", (run) => run.alpha], ["temperature", (run) => run.temperature], ["n", (run) => run.n], ["seed", (run) => run.seed],
    ["problems", (run) => (run.complete ? run.problems : `${run.done} of ${run.problems}`)],
    ["Pass@1", (run) => passed(run, 1)], ["Maj@n", (run) => share(run.voted)], ["Pass@n", (run) => passed(run, run.n)], ["started", (run) => (run.began || "").replace("T", " ").slice(0, 16)],
  ];

  function passed(run, k) {
    return share(run.passed && run.passed[`pass@${k}`]);
  }

  const share = (value) => (typeof value === "number" ? percent(value) : "–");

  const words = (run) => COLUMNS.map(([, value]) => String(run.damage ? run.id : value(run))).join(" ").toLowerCase();

  function table() {
    const wanted = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const complete = byId("complete").checked;
    const some = runs.filter((run) => (run.complete || !complete) && wanted.every((word) => words(run).includes(word)));
    byId("count").textContent = `${some.length} of ${count(total, "run")}${total > runs.length ? `; only the newest ${runs.length} are listed` : ""}`;
    byId("table").replaceChildren(
      el("thead", {}, el("tr", {}, COLUMNS.map(([name]) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, some.map(line)));
  }

  function line(run) {
    const button = el("button", { type: "button", onclick: () => pick(run.id) }, visible(run.id));
    if (run.damage) return el("tr", {}, el("td", {}, visible(run.id)), el("td", { class: "damage", colspan: COLUMNS.length - 1 }, visible(run.damage)));
    return el("tr", { "aria-selected": String(run.id === chosen) }, el("td", {}, button),
      COLUMNS.slice(1).map(([, value]) => el("td", {}, visible(value(run) ?? "–"))));
  }

  async function tried(work) {
    try { await work(); notice(""); } catch (error) { notice(error.message); }
  }

  const address = (run, rest) => `v1/runs/${encodeURIComponent(run)}/${rest}`;

  function pick(run, focus = true) {
    chosen = run;
    table();
    const place = byId("problems"), items = el("ol", { class: "problems" });
    for (const old of [place, byId("samples")]) old.replaceChildren(); // they are of another run
    const more = el("button", { type: "button" }, "Show more");
    let next = 0;
    const load = () => tried(async () => {
      const found = await oddlm.server.json(address(run, `problems?offset=${next}&limit=${PAGE}`));
      if (chosen !== run) return; // another was picked meanwhile
      next += found.data.length;
      items.append(...found.data.map((one) => problem(run, one)));
      more.hidden = next >= found.total;
      place.replaceChildren(el("h2", {}, `Problems of run ${visible(run)}`), el("p", { class: "quiet" }, `${next} of ${found.total}`), items, more);
      if (focus) { focus = false; place.scrollIntoView({ block: "nearest" }); place.focus(); }
    });
    more.addEventListener("click", load);
    history.replaceState(null, "", `#${new URLSearchParams({ run })}`);
    return load();
  }

  function problem(run, one) {
    const verdict = one.right === null ? el("span", { class: "verdict" }, "not scored")
      : el("span", { class: one.right ? "verdict right" : "verdict" }, one.right ? `✓ ${one.right} of ${one.n}` : `✗ 0 of ${one.n}`);
    return el("li", {}, el("button", { type: "button", onclick: () => samples(run, one.id) }, visible(one.id), verdict));
  }

  function samples(run, name) {
    return tried(async () => {
      asked = name;
      const row = await oddlm.server.json(address(run, `samples?problem=${encodeURIComponent(name)}`));
      if (chosen !== run || asked !== name) return;
      const groups = new Map();
      for (const sample of row.samples) groups.set(sample.text, [...(groups.get(sample.text) || []), sample]);
      const place = byId("samples");
      place.replaceChildren(el("h2", {}, visible(name)), el("pre", { class: "asked", tabindex: "0" }, visible(row.prompt)),
        el("p", { class: "quiet" }, `${count(groups.size, "distinct answer")} in ${count(row.samples.length, "sample")}, seed ${row.seed}`),
        ...[...groups.values()].map(answer));
      history.replaceState(null, "", `#${new URLSearchParams({ run, problem: name })}`);
      place.scrollIntoView({ block: "nearest" });
      place.focus();
    });
  }

  function answer(same) {
    const [first] = same;
    const verdict = first.correct === null ? "" : first.correct ? "✓ solved" : "✗ wrong";
    return el("div", { class: "answer" }, el("span", { class: "number" }, same.length > 1 ? `${same.length} ×` : `${first.index + 1}`),
      el("div", {}, el("pre", {}, visible(first.text) || "(empty)"), el("span", { class: "quiet" }, visible(first.detail || ""))),
      el("span", { class: first.correct ? "verdict right" : "verdict" }, verdict));
  }

  async function begin() {
    oddlm.theme();
    for (const id of ["filter", "complete"]) byId(id).addEventListener("input", table);
    try {
      const found = await oddlm.server.json("v1/runs");
      runs = found.data;
      total = found.total;
    } catch (error) {
      notice(error.message);
      return;
    }
    byId("runs").hidden = false;
    table();
    const wanted = new URLSearchParams(location.hash.slice(1));
    if (wanted.get("run")) {
      await pick(wanted.get("run"), false);
      if (wanted.get("problem")) await samples(wanted.get("run"), wanted.get("problem"));
    }
    byId("curves").replaceChildren(el("p", { class: "quiet" }, "Computing Pass@k …"));
    try { oddlm.curves.show(byId("curves"), (await oddlm.server.json("v1/curves")).data, 0); } catch (error) {
      byId("curves").replaceChildren();
      notice(error.message);
    }
  }

  begin();
})();
