"use strict";

// What builds the parts of the page. All texts go through textContent.
const draw = (() => {
  const { el, svg } = page;
  const seconds = (ms) => (ms / 1000).toFixed(1) + " s";
  const nameOf = (id) => id.split(":")[0];

  // button makes a button that asks for a deed.
  function button(deed, go) {
    const b = el("button", { type: "button", "data-do": deed.do, "data-who": deed.who || "", class: go ? "go" : undefined }, deed.label);
    if (deed.who) b.setAttribute("aria-label", deed.label + " " + deed.who);
    return b;
  }

  function step(s) {
    const li = el("li", { class: s.state, "aria-current": s.state === "now" ? "step" : undefined }, s.text);
    if (s.button) li.append(button({ do: "step", label: s.button }, true));
    return li;
  }

  // worker draws a worker: what it believes, and beside it what is true.
  function worker(w, state) {
    const writes = w.id !== "" && w.id === state.lease.leader;
    const wrong = w.leads && !writes && state.lease.epoch > 0 && w.process !== "stopped";
    const li = el("li", { class: "worker" + (writes ? " writes" : wrong ? " wrong" : ""), "data-worker": w.name });
    const tags = el("p", {});
    const tag = (text, kind) => tags.append(el("span", { class: "tag " + (kind || "") }, text));
    tag(w.process, w.process === "running" ? "" : "cold");
    if (w.cut) tag(state.lease.kind === "anyone" ? "other side" : "cut off", "cold");
    if (writes) tag("may write, epoch " + state.lease.epoch, "good");
    else if (wrong) tag("believes it leads, may not write", "bad");
    li.append(el("h3", { title: w.id || undefined }, w.name),
      el("p", { class: "believes" }, w.process === "stopped" ? w.believes : "\u201c" + w.believes + "\u201d"), tags,
      el("p", { class: "faint" }, w.wrote + " written, " + w.refused + " refused"));
    if (w.last_error) li.append(el("p", { class: "error" }, w.last_error));
    const buttons = el("p", { class: "buttons" });
    for (const d of w.deeds) buttons.append(button(d));
    li.append(buttons);
    return li;
  }

  const row = (...cells) => el("tr", {}, ...cells.map((c) => el("td", {}, String(c))));

  function audit(a) {
    const li = el("li", {}, el("span", { class: "at" }, seconds(a.at)), el("span", { class: "who bad" }, a.sqlstate), a.message + ": ",
      a.worker + " (epoch " + a.epoch + ") is not " + (a.current_worker || "the leader") + " (epoch " + a.current_epoch + ") ");
    if (a.statement) li.append(el("code", {}, a.statement));
    if (a.repeated) li.append(" and " + a.repeated + " more like it");
    return li;
  }

  function line(l) {
    return el("li", {}, el("span", { class: "at" }, seconds(l.at)), el("span", { class: "who" }, (l.source === "you" ? "you: " : "") + l.who),
      el("span", { class: l.bad ? "bad" : undefined }, l.text));
  }

  // timeline draws the last minute: a lane for each worker.
  function timeline(root, state, now) {
    const width = Math.max(root.clientWidth, 280), left = 68, lane = 34, span = 60000;
    const names = state.workers.map((w) => w.name), height = names.length * lane + 6;
    root.setAttribute("viewBox", "0 0 " + width + " " + height);
    root.style.height = height + "px";
    const x = (at) => left + (width - left - 6) * Math.max(0, 1 - (now - at) / span);
    const y = (name) => names.indexOf(name) * lane + lane / 2 + 3;
    const parts = [];
    for (const n of names) {
      parts.push(svg("text", { x: 0, y: y(n) + 4 }, n), svg("line", { class: "lane", x1: left, x2: width - 6, y1: y(n), y2: y(n) }));
    }
    state.ledger.forEach((g, i) => {
      const end = i === 0 ? now : state.ledger[i - 1].at;
      if (now - end >= span || !names.includes(nameOf(g.worker))) return;
      const from = x(g.at), to = x(end);
      parts.push(svg("rect", { class: "term", x: from, y: y(nameOf(g.worker)) - 13, width: Math.max(1, to - from), height: 26, rx: 3 }));
      if (to - from > 14) parts.push(svg("text", { x: from + 4, y: y(nameOf(g.worker)) - 2 }, g.epoch));
    });
    for (const m of state.marks) {
      if (now - m.at >= span || !names.includes(m.worker)) continue;
      const cx = x(m.at), cy = y(m.worker) + 6;
      if (m.kind === "wrote") parts.push(svg("circle", { class: "wrote", cx, cy, r: 2.5 }));
      else parts.push(svg("path", { class: "refused", d: `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8` }));
    }
    root.replaceChildren(...parts);
  }

  return { seconds, nameOf, button, step, worker, row, audit, line, timeline };
})();
