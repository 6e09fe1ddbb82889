// The explorer: recordings that came with the page, files, and live runs of the server.
"use strict";

(() => {
  const { byId, el, notice } = oddlm;
  let stage, settings = null, running = null, source = {}; // source: what the address says beside step and view
  let version = "unknown";

  const served = () => document.querySelector("meta[name=oddlm]").content === "served";
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  let writing = null;
  function remember() {
    clearTimeout(writing);
    writing = setTimeout(() => oddlm.address.write({ ...source, view: stage.chosen, step: running ? null : stage.player.steps }), 150);
  }

  function showRecording(index, step) {
    let shown;
    try { shown = oddlm.recording.open(oddlm.recordings[index]); } catch (error) {
      notice(`Recording ${index + 1} of this page cannot be shown: ${error.message}.`);
      return;
    }
    stop();
    notice("");
    source = { recording: index + 1 };
    version = shown.madeBy;
    stage.show(shown, step === undefined ? shown.diverse.steps.length : step);
    for (const [i, button] of [...byId("examples").children].entries()) button.setAttribute("aria-pressed", String(i === index));
    takeOver(shown);
    if (step === undefined && !still()) stage.player.play();
    remember();
  }

  // The form goes on from what is shown.
  function takeOver(shown) {
    if (!settings) return null;
    const { params, n, prompt } = shown.diverse.start;
    const known = shown.task && settings.tasks.some((task) => task.name === shown.task.name);
    return settings.set({
      ...settings.named(params), ...("recording" in source ? settings.push : {}), n, prompt,
      task: known ? shown.task.name : "", problem: known ? shown.task.problem : undefined,
    });
  }

  async function openFile(file) {
    if (!file) return;
    try {
      const shown = oddlm.recording.parse(await file.text());
      stop();
      source = {};
      version = shown.madeBy;
      stage.show(shown, shown.diverse.steps.length);
      for (const button of byId("examples").children) button.setAttribute("aria-pressed", "false");
      takeOver(shown);
      const broken = [shown.plain, shown.diverse].map((run) => run.error).filter(Boolean);
      notice(broken.length ? `This recording is incomplete. ${broken[0]}` : `${file.name}: a recording of the model ${shown.diverse.start.model}.`, broken.length ? "problem" : "good");
    } catch (error) {
      notice(`${file.name} cannot be shown: ${error.message}.`);
    }
  }

  function download() {
    const { plain, diverse } = stage.shown || {};
    if (!plain || !diverse) { notice("There is nothing to download yet."); return; }
    const content = JSON.stringify(oddlm.recording.stored(stage.shown, version));
    const link = el("a", { href: URL.createObjectURL(new Blob([content], { type: "application/json" })), download: "oddlm-recording.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  async function share() {
    clearTimeout(writing);
    oddlm.address.write({ ...source, view: stage.chosen, step: stage.player.steps });
    if (!Object.keys(source).length) { notice("A link cannot contain a file that you opened. Use Download and share the recording."); return; }
    try {
      await navigator.clipboard.writeText(location.href);
      notice("Link copied. It contains all settings.", "good");
    } catch {
      notice(`The link could not be copied. The address of this page contains all settings: ${location.href}`, "good");
    }
  }

  function stop() {
    if (running) running.abort();
    running = null;
    if (settings) settings.busy(false);
  }

  async function generate(then = {}) {
    if (running) { stop(); notice("Stopped. The steps received so far are shown.", "good"); return; }
    const body = settings.body(), task = settings.origin();
    const mine = running = new AbortController();
    version = settings.card.version;
    const shown = { title: task ? task.question : body.prompt, task, plain: null, diverse: null };
    source = settings.get();
    settings.busy(true);
    notice(then.words || "");
    stage.player.pause();
    for (const button of byId("examples").children) button.setAttribute("aria-pressed", "false");
    remember();
    const heard = (name) => (run) => {
      if (mine.signal.aborted) return;
      if (shown[name] !== run) { shown[name] = run; stage.show(shown, 0); }
      else stage.extend(stage.reached());
    };
    const wanted = { plain: { ...body, alpha: 0, fork: false }, diverse: body };
    const done = await Promise.allSettled(Object.entries(wanted).map(async ([name, one]) => {
      const run = await oddlm.server.denoise(one, heard(name), mine.signal);
      if (task && run.end) await judge(task, run, mine.signal);
    }));
    if (mine.signal.aborted) return;
    running = null;
    settings.busy(false);
    finish(shown, done, then);
  }

  function finish(shown, done, { step, words = "" }) {
    const failures = done.filter((one) => one.status === "rejected").map((one) => one.reason.message);
    const broken = ["plain", "diverse"].map((name) => shown[name] && shown[name].error).filter(Boolean);
    if (shown.plain || shown.diverse) stage.show(shown, step === undefined ? stage.reached() : step);
    notice([...new Set([...broken, ...failures, words])].filter(Boolean).join(" "));
    remember();
  }

  async function judge(task, run, signal) {
    const body = { problem: task.problem, texts: run.end.samples.map((sample) => sample.text.replaceAll("\0", "\ufffd")) };
    run.judge((await oddlm.server.json(`v1/tasks/${encodeURIComponent(task.name)}/score`, body, signal)).data);
  }

  // Ask the server what it has; a page without one shows recordings alone.
  async function connect() {
    const place = byId("controls");
    if (!served()) {
      for (const id of ["try-link", "runs-link"]) byId(id).remove();
      place.replaceChildren(el("h2", {}, "Recordings"), el("p", {}, "This copy of the explorer shows recordings and has no model. To try your own prompts:"),
        el("pre", {}, "pip install 'oddlm[serve]'\noddlm serve"));
      return;
    }
    try {
      const [models, tasks] = await Promise.all([oddlm.server.json("v1/models"), oddlm.server.json("v1/tasks")]);
      settings = new oddlm.Settings(place, models.data[0], tasks.data, () => generate());
    } catch (error) {
      if (error.status === 401) { askForKey(place); notice(oddlm.server.hasKey() ? error.message : ""); }
      else { place.replaceChildren(el("p", {}, "Settings are not available: the server did not provide them.")); notice(error.message); }
    }
  }

  function askForKey(place) {
    const field = el("input", { type: "password", id: "key", autocomplete: "off", required: true });
    const form = el("form", {}, el("h2", {}, "Try your own"), el("label", { for: "key" }, "This server requires an API key"), field, el("button", { type: "submit", class: "main" }, "Continue"));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      oddlm.server.setKey(field.value);
      await connect();
      if (!settings) return;
      notice("");
      await restore();
    });
    place.replaceChildren(form);
  }

  const misread = (parts) => (parts.length ? `The link has invalid values, replaced by defaults: ${parts.join(", ")}.` : "");

  // What the address asks for.
  async function restore() {
    const { found, wrong } = oddlm.address.read();
    const { view, step, recording, ...rest } = found;
    stage.view(view);
    if (settings && Object.keys(rest).length) {
      await settings.set({ ...settings.usual, ...oddlm.Settings.ended(rest) });
      const moved = Object.keys(rest).map((name) => settings.moved[name]).filter(Boolean);
      await generate({ step, words: [misread([...wrong, ...settings.unknown]), moved.length ? `The link exceeds this server's limits: ${moved.join(", ")}.` : ""].filter(Boolean).join(" ") });
      return;
    }
    if (recording !== undefined && !oddlm.recordings[recording - 1]) {
      showRecording(0);
      notice(`There is no recording ${recording}; this is the first one.`);
    } else showRecording(recording === undefined ? 0 : recording - 1, step);
    if (wrong.length) notice(misread(wrong));
  }

  function begin() {
    oddlm.theme();
    stage = new oddlm.Stage(remember);
    const buttons = oddlm.recordings.map((_, i) => el("button", { type: "button", onclick: () => showRecording(i) }, `Example ${i + 1}`));
    byId("examples").replaceChildren(...(buttons.length > 1 ? buttons : []));
    byId("share").addEventListener("click", share);
    byId("download").addEventListener("click", download);
    byId("open").addEventListener("change", (event) => { openFile(event.target.files[0]); event.target.value = ""; });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => { event.preventDefault(); openFile(event.dataTransfer.files[0]); });
    for (const link of document.querySelectorAll("a[href^='#']")) {
      link.addEventListener("click", (event) => { // the address is for settings
        event.preventDefault();
        const place = byId(link.hash.slice(1));
        place.scrollIntoView();
        place.focus();
      });
    }
    window.addEventListener("hashchange", () => { stop(); restore(); });
    const live = Object.keys(oddlm.address.read().found).some((name) => !["view", "step", "recording"].includes(name));
    if (!live || !served()) restore();
    connect().then(() => (live && settings ? restore() : stage.shown && takeOver(stage.shown)));
  }

  begin();
})();
