// What the page asks of its server. Every failure is an Error in words.
"use strict";

oddlm.server = (() => {
  let key = "";

  const headers = () => ({ "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) });

  class Refused extends Error {
    constructor(status, words) { super(words); this.status = status; }
  }

  class Gone extends Error {}

  async function ask(path, options) {
    let answer;
    try { answer = await fetch(path, { ...options, headers: headers() }); } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not respond. Is it still running?");
    }
    if (!answer.ok) throw new Refused(answer.status, await refusal(answer));
    return answer;
  }

  async function refusal(answer) {
    try { return `The server refused the request: ${(await answer.json()).error.message}`; } catch {
      return `The server responded with status ${answer.status}.`;
    }
  }

  async function json(path, body, signal) {
    const answer = await ask(path, body ? { method: "POST", body: JSON.stringify(body), signal } : { signal });
    try { return await answer.json(); } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server's response was cut off.");
    }
  }

  // Server-sent events as they come: {event, data}.
  async function* events(answer) {
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    let rest = "";
    try {
      for (;;) {
        const { done, value } = await reader.read().catch((error) => { throw error.name === "AbortError" ? error : new Gone(); });
        if (done) throw new Gone();
        const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const lines = block.split("\n");
          const field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
          yield { event: field("event").join(""), data: field("data").join("\n") };
        }
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  // Denoise a prompt; `heard` is called with the run at its start and after each message. Gives the run, however far it came:
  // what went wrong stands in its `error`, and is thrown only where nothing came at all.
  async function denoise(body, heard, signal) {
    const answer = await ask("v1/denoise", { method: "POST", body: JSON.stringify(body), signal });
    let run = null;
    try {
      for await (const { event, data } of events(answer)) {
        const message = understood(event, data);
        if (event === "error") throw new Error(`The server stopped the run: ${message.error.message}`);
        if (event === "start") run = new oddlm.Run(message);
        else if (run === null) throw new Error("The server sent a step before the start.");
        else if (event === "step") run.add(message);
        else if (event === "end") run.finish(message);
        heard(run);
        if (event === "end") return run;
      }
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const after = run ? ` after step ${run.steps.length} of ${run.total}` : "";
      const gone = `The connection was lost${after}. The steps received so far are shown.`;
      const words = error instanceof Gone ? gone : error.message;
      if (run === null) throw new Error(words);
      run.error = words;
      heard(run);
      return run;
    }
  }

  function understood(event, data) {
    if (!["start", "step", "end", "error"].includes(event)) throw new Error(`The server sent an unknown event: “${event.slice(0, 40)}”.`);
    try { return JSON.parse(data); } catch { throw new Error("The server sent an event that cannot be read."); }
  }

  return { json, denoise, Refused, setKey: (given) => { key = given; }, hasKey: () => key !== "" };
})();
