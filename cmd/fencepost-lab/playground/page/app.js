"use strict";

// The page shows the state that the program sends, and asks it for deeds.
(() => {
  const $ = (id) => document.getElementById(id);
  const titles = {
    lease: "Acquire and renew", crash: "Crash", pause: "A pause, and the fence", free: "Free play",
    leaders: "Two leaders under a partition",
  };
  let state = null, received = 0, announced = "", refusal = "";
  const shown = {}; // what each part shows, as JSON, so that only what has changed is drawn again

  // now is the time of the scene, which goes on between two states.
  const now = () => state.now + (performance.now() - received);

  // put draws a part again if it has changed. A button that has the focus keeps it.
  function put(id, value, children) {
    const text = JSON.stringify(value);
    if (shown[id] === text) return;
    shown[id] = text;
    const focus = document.activeElement;
    const again = focus && $(id).contains(focus) && focus.dataset.do ? `[data-do="${focus.dataset.do}"][data-who="${focus.dataset.who}"]` : "";
    $(id).replaceChildren(...children());
    if (again) ($(id).querySelector(again) || $("scene")).focus({ preventScroll: true });
  }

  function show() {
    const l = state.lease;
    const title = titles[state.scene] + (state.algorithm ? " (" + state.algorithm + ")" : "");
    put("scene-title", title, () => [title]);
    put("steps", state.steps, () => state.steps.map(draw.step));
    put("deeds", state.deeds, () => state.deeds.map((d) => draw.button(d)));
    put("workers", [state.workers, l.leader, l.epoch, l.kind], () => state.workers.map((w) => draw.worker(w, state)));
    put("epoch", l.epoch, () => [l.epoch ? String(l.epoch) : "none"]);
    put("leader", l.leader, () => [l.leader || "nobody"]);
    put("written", state.totals.written, () => [String(state.totals.written)]);
    put("refused", state.totals.refused, () => [String(state.totals.refused)]);
    put("grants", state.totals.grants, () => [String(state.totals.grants)]);
    put("twice", state.totals.twice, () => [String(state.totals.twice)]);
    put("ledger", state.ledger, () => state.ledger.map((g) => draw.row(g.epoch, g.worker, draw.seconds(g.at))));
    put("notes", state.notes, () => state.notes.map((n) => draw.row(n.n, n.worker, n.epoch, draw.seconds(n.at))));
    put("audit", state.audit, () => state.audit.length ? state.audit.map(draw.audit) : [emptyLine("Nothing was refused.")]);
    put("lines", state.lines, () => state.lines.map(draw.line));
    problem();
    for (const b of document.querySelectorAll("#scenes button")) {
      const current = b.dataset.scene === state.scene && (b.dataset.algorithm || "") === (state.algorithm || "");
      if (current) b.setAttribute("aria-current", "true"); else b.removeAttribute("aria-current");
    }
    announce();
    tick();
  }

  // problem shows what is wrong, or why the last wish was refused.
  function problem() {
    const text = refusal || (state && state.problem) || "";
    $("problem").hidden = !text;
    put("problem", text, () => [text]);
  }

  function emptyLine(text) {
    const li = document.createElement("li");
    li.textContent = text;
    return li;
  }

  // announce tells a screen reader of the current step, once.
  function announce() {
    const step = state.steps.find((s) => s.state === "now") || state.steps[state.steps.length - 1];
    const text = step ? step.text : "";
    if (text !== announced) $("announce").textContent = announced = text;
  }

  // tick draws what changes with the time alone.
  function tick() {
    if (!state) return;
    const l = state.lease, left = Math.max(0, l.until - now());
    $("meter").hidden = l.kind === "anyone" || !l.ttl;
    if (l.kind === "anyone") {
      $("lease").textContent = "awarded to everybody who asks";
    } else if (!l.held) {
      $("lease").textContent = "free";
      $("meter-left").style.width = "0";
    } else {
      $("lease").textContent = l.holder + ", " + draw.seconds(left) + " left, renewed " + l.renewals + " times";
      $("meter-left").style.width = Math.min(100, 100 * left / l.ttl) + "%";
    }
    draw.timeline($("timeline"), state, now());
  }

  // ask sends what the visitor wants. What comes of it is in the next state.
  async function ask(path, what) {
    try {
      const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(what) });
      refusal = answer.ok ? "" : (await answer.text()).trim();
    } catch {
      refusal = "The playground does not answer.";
    }
    problem();
  }

  document.addEventListener("click", (event) => {
    const b = event.target.closest("button");
    if (!b) return;
    if (b.dataset.scene) ask("/enter", { scene: b.dataset.scene, algorithm: b.dataset.algorithm || "" });
    else if (b.id === "restart" && state) ask("/enter", { scene: state.scene, algorithm: state.algorithm || "" });
    else if (b.dataset.do) ask("/do", { do: b.dataset.do, who: b.dataset.who });
  });

  const events = new EventSource("/events");
  events.onopen = () => { $("connection").textContent = ""; };
  events.onerror = () => { $("connection").textContent = "The playground does not answer. The page tries again."; };
  events.onmessage = (event) => {
    state = JSON.parse(event.data);
    received = performance.now();
    show();
  };
  setInterval(tick, 250);
})();
