"use strict";

// One resource: what it is, what happened to it, and the commands for it.
const resource = (() => {
  const { el, svg, plain } = page;
  const { duration, limit, stamp, short, table, facts, command } = words;
  const $ = (id) => document.getElementById(id);
  const spans = [[60, "1 minute"], [600, "10 minutes"], [3600, "1 hour"], [21600, "6 hours"], [86400, "1 day"], [604800, "7 days"], [2592000, "30 days"], [7776000, "90 days"]];
  const longest = 100; // events in the list
  let here = null; // database and resource
  let span = 3600, until = 0; // until is 0 for now
  let changed = ""; // what the history depends on
  const told = { blockers: "", commands: "" };

  for (const [seconds, name] of spans) $("span").append(el("option", { value: seconds }, name));
  const history = new Source("history-age", ["history"], () => draw());
  const connections = new Source("resource-connections-age", ["resource-connections"], (body) => others.connections($("resource-connections"), body));

  // open shows a resource of the address.
  function open(database, name, params) {
    if (!here || here[0] !== database || here[1] !== name) {
      here = [database, name];
      history.forget();
      connections.forget();
      $("events").replaceChildren();
      $("timeline").replaceChildren();
      $("resource-connections").replaceChildren();
      $("resource-connections").shown = "";
    }
    span = spans.some(([s]) => s === Number(params.get("span"))) ? Number(params.get("span")) : 3600;
    until = Number(params.get("until")) || 0;
    $("span").value = String(span);
    history.asked = 0;
  }

  function go(newSpan, newUntil) {
    const at = newUntil && newUntil < app.clock() / 1000 ? Math.round(newUntil) : 0;
    location.hash = `/resource/${encodeURIComponent(here[0])}/${encodeURIComponent(here[1])}?span=${newSpan}` + (at ? `&until=${at}` : "");
  }
  const end = () => until || app.clock() / 1000;
  $("span").addEventListener("change", () => go(Number($("span").value), until));
  $("earlier").addEventListener("click", () => go(span, end() - span / 2));
  $("later").addEventListener("click", () => go(span, end() + span / 2));
  $("now").addEventListener("click", () => go(span, 0));

  // list shows texts in a list, if they have changed.
  function list(id, items, make) {
    const text = JSON.stringify(items);
    if (told[id] === text) return;
    told[id] = text;
    $(id).replaceChildren(...items.map(make));
  }

  // blockers says what keeps workers from leading, and since when.
  function blockers(v, passed, clock) {
    const said = [];
    if (v.state_reason) said.push(v.state_reason);
    for (const by of (v.takeover_blocked_by || []).filter((b) => !(v.state_reason || "").includes(b))) said.push("takeover blocked: " + by);
    for (const b of v.takeover_waits_for || []) {
      const ends = (Date.parse(b.ends_at) - clock) / 1000;
      said.push(`takeover waits for backend ${b.pid} of role ${b.user} (application ${b.application || "-"}, from ${b.address}): ${b.state}` +
        (b.since ? ` since ${stamp(b.since)}` : "") + (ends > 0 ? `, ended in ${duration(ends)}` : ", is being ended"));
    }
    for (const o of v.orders || []) said.push("order: " + o);
    if (v.election_error) said.push("lease service: " + v.election_error);
    for (const w of v.workers) {
      if (w.fault) said.push(`worker ${w.worker}: ${w.fault}`);
      if (w.barred) said.push(`worker ${w.worker}: ${w.barred}`);
    }
    if (v.state !== "led") said.unshift([v.state, resources.since(v, clock), v.leaderless_seconds > 0 ? `(without a leader for ${duration(v.leaderless_seconds + passed)})` : ""].filter(Boolean).join(" "));
    return said.length ? said : ["nothing that this proxy knows of"];
  }

  // commands returns those that fit the state.
  function commands(v) {
    if ((v.resource + v.database).includes("\ufffd")) return [];
    const whole = (name) => !name.includes("\ufffd");
    const all = v.state === "paused" ? [command("resume", v)] : [command("pause", v)];
    if (v.leader && whole(v.leader)) all.push(command("evict", v, "--worker", v.leader));
    for (const w of (v.waiting || []).filter(whole).slice(0, 5)) all.push(command("handover", v, "--to", w));
    return all;
  }

  async function copy(text, code) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // not under TLS, and not on localhost
      getSelection().selectAllChildren(code);
      done = document.execCommand("copy");
    }
    $("copied").textContent = done ? "copied: " + text : "select it and copy it yourself";
  }

  // show brings the facts up to date.
  function show(clock) {
    const r = resources.find(...here);
    $("resource-title").textContent = plain(here[1]) + " in database " + plain(here[0]);
    $("resource-gone").hidden = Boolean(r);
    $("resource-gone").textContent = "This proxy does not know the resource: no worker uses it here, and none has led it, as far as its database has said.";
    const v = r ? r.view : { database: here[0], resource: here[1], workers: [], state: "unknown" };
    const passed = r ? (clock - r.at) / 1000 : 0, quiet = resources.silence(v, passed), old = resources.age(v, clock);
    $("facts").classList.toggle("old", !r || old > 15);
    facts($("facts"), !r ? [] : [
      ["State", v.state + " " + (v.state === "led" ? "" : resources.since(v, clock))], ["Leader", v.leader], ["Led last", v.leader ? "" : v.granted_to], ["Through proxy", v.proxy],
      ["Epoch", v.epoch ? String(v.epoch) : ""], ["Granted", v.since ? stamp(v.since) : ""], ["Silent", quiet ? quiet.text + ", " + quiet.limit : ""], ["Lease left", resources.left(v, passed, clock)],
      ["Without a leader", v.leaderless_seconds > 0 ? duration(v.leaderless_seconds + passed) : ""], ["Stale writes", String(v.stale_writes)], ["Refused writes", String(v.refused_writes)],
      ["Discarded writes", v.discarded_writes ? String(v.discarded_writes) : ""], ["Guarded tables", v.guarded_tables ? String(v.guarded_tables) : ""],
      ["Enforced", v.enforce === "shadow" ? "no: shadow" : ""], ["False alarms", v.false_alarms ? String(v.false_alarms) : ""], ["Known", v.as_of ? duration(old) + " ago, by the database" : ""],
    ]);
    list("blockers", r ? blockers(v, passed, clock) : [], (text) => el("li", {}, text));
    list("commands", r ? commands(v) : [], (text) => {
      const code = el("code", {}, text), button = el("button", { type: "button", "aria-label": "Copy: " + text }, "Copy");
      button.addEventListener("click", () => copy(text, code));
      return el("li", {}, code, button);
    });
    table($("workers"), "Workers of this proxy", ["Worker", "User", "Role", "Connections", "Silent", "Longest silence", "Heartbeat"], v.workers.map((w) => [
      short(w.worker), short(w.user), w.observes ? "observer" : w.role, String(w.connections),
      (w.silence_seconds < 2 ? "active" : duration(w.silence_seconds + passed)) + ", " + limit(w.worker_timeout_seconds),
      w.longest_silence_seconds ? duration(w.longest_silence_seconds) : "", w.heartbeat_seconds === null ? "" : "within " + duration(w.heartbeat_seconds)]), "No worker of this resource is connected to this proxy.");
    const path = encodeURIComponent(here[0]) + "/" + encodeURIComponent(here[1]);
    connections.ask(`v1/connections?limit=200&database=${encodeURIComponent(here[0])}&resource=${encodeURIComponent(here[1])}`, 5);
    const now = JSON.stringify([v.epoch, v.state, v.refused_writes, v.discarded_writes, v.orders]);
    const period = until ? `?since=${until - span}&until=${until}` : `?since=-${span}`;
    history.ask(`v1/resources/${path}/history${period}`, now !== changed ? 2 : until ? 60 : span <= 3600 ? 5 : 15);
    if (Date.now() - history.asked < 1000) changed = now;
    $("history-problem").hidden = !history.error;
    if (history.error) $("history-problem").textContent = plain(history.error);
    if (!until && span <= 600 && history.body && !history.error) timeline();
  }

  // draw shows the history, as a picture and as a list.
  function draw() {
    timeline();
    const { recorded, silences } = history.body;
    const from = Date.parse(history.body.since), to = Date.parse(history.body.until);
    const said = [];
    const add = (at, kind, who, text, bad) => { const t = Date.parse(at); if (t >= from && t <= to) said.push({ t, kind, who, text, bad }); };
    for (const t of recorded.terms) {
      const lasted = t.to ? ` for ${duration((Date.parse(t.to) - Date.parse(t.from)) / 1000)}` : " until now";
      if (t.worker) add(t.from, "epoch " + t.epoch, t.worker, `was granted the epoch, by ${t.source}${t.token ? " " + t.token : ""}, and held it${lasted}`);
      else add(t.from, "epoch " + t.epoch, "no worker", `held it${lasted}, by ${t.source}`);
    }
    for (const r of recorded.refusals) {
      add(r.last, r.kind, r.worker || "-", `epoch ${r.epoch}, current ${r.current_epoch}${r.current_worker ? " of " + r.current_worker : ""}: ${r.count} × ${r.sqlstate} ${r.write ? "write" : "read"} ${r.statement}`, true);
    }
    for (const o of recorded.orders) {
      add(o.asked_at, "order: " + o.kind, o.worker || "", `by ${o.asked_by} (role ${o.role})` + (o.reason ? ", because of " + o.reason : "") + (o.until ? ", until " + stamp(o.until) : "") + (o.epoch ? `; epoch ${o.epoch} is no worker's` : ""));
    }
    for (const s of silences) add(s.at, "silent", s.worker, `its lease of epoch ${s.epoch} was released for silence, by this proxy`);
    said.sort((a, b) => b.t - a.t);
    const items = said.slice(0, longest).map((e) => el("li", {}, el("span", { class: "at" }, stamp(e.t)), el("span", { class: "who" + (e.bad ? " bad" : "") }, e.kind), short(e.who), ": ", short(e.text, 300)));
    if (recorded.cut || said.length > longest) items.push(el("li", {}, `There is more: ${said.length > longest ? `${said.length - longest} earlier events are in this time` : "earlier rows of this time were not read"}. Choose a shorter time.`));
    if (!items.length) items.push(el("li", {}, "Nothing in this time."));
    $("events").replaceChildren(...items);
  }

  // timeline draws the history. Terms that are narrower than a pixel are drawn as one.
  function timeline() {
    const root = $("timeline"), { recorded, silences } = history.body;
    const to = until ? until * 1000 : app.clock(), from = to - span * 1000;
    const width = Math.max(root.clientWidth, 280), height = 92, right = width - 2;
    const x = (at) => Math.min(right, Math.max(0, right * (at - from) / (to - from)));
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.style.height = height + "px";
    const parts = [], titled = (shape, text) => { shape.append(svg("title", {}, text)); parts.push(shape); };
    let many = null; // terms that are drawn as one
    const flush = () => {
      if (many) titled(svg("rect", { class: "many", x: many.from, y: 4, width: Math.max(1, many.to - many.from), height: 30 }), many.n + " terms");
      many = null;
    };
    for (let i = recorded.terms.length - 1; i >= 0; i--) {
      const t = recorded.terms[i], a = Date.parse(t.from), b = t.to ? Date.parse(t.to) : to;
      if (b < from || a > to) continue;
      const x1 = x(a), x2 = x(b);
      if (x2 - x1 < 2) {
        if (many && x1 - many.to > 2) flush();
        many = many || { from: x1, n: 0 };
        many.to = x2;
        many.n++;
        continue;
      }
      flush();
      titled(svg("rect", { class: t.worker ? "term" : "nobody", x: x1, y: 4, width: x2 - x1, height: 30, rx: 3 }), `epoch ${t.epoch}: ${t.worker || "no worker"}, since ${stamp(t.from)}`);
      const label = String(t.epoch) + (x2 - x1 > 160 && t.worker ? "  " + Array.from(t.worker).slice(0, Math.floor((x2 - x1) / 8) - 8).join("") : "");
      if (x2 - x1 > label.length * 7) parts.push(svg("text", { x: x1 + 4, y: 23 }, label));
    }
    flush();
    // Marks closer than a pixel to the last one of their kind are left out.
    const marks = (y, all, at, shape, title) => {
      let last = -1;
      for (const m of [...all].sort((a, b) => Date.parse(at(a)) - Date.parse(at(b)))) {
        const t = Date.parse(at(m)), cx = x(t);
        if (t < from || t > to || cx - last < 1) continue;
        last = cx;
        titled(shape(cx, y), title(m));
      }
    };
    const refused = recorded.refusals.filter((r) => r.kind !== "discarded"), discarded = recorded.refusals.filter((r) => r.kind === "discarded");
    const counted = (r) => `${stamp(r.last)}: ${r.count} × ${r.kind}, ${r.worker}`;
    marks(46, refused, (r) => r.last, (cx, y) => svg("path", { class: "refused", d: `M${cx - 4} ${y - 4}l8 8m0 -8l-8 8` }), counted);
    marks(46, discarded, (r) => r.last, (cx, y) => svg("circle", { class: "discarded", cx, cy: y, r: 4 }), counted);
    marks(62, recorded.orders, (o) => o.asked_at, (cx, y) => svg("rect", { class: "order", x: cx - 4, y: y - 4, width: 8, height: 8 }), (o) => `${stamp(o.asked_at)}: ${o.kind} by ${o.asked_by}`);
    marks(62, silences, (s) => s.at, (cx, y) => svg("path", { class: "silence", d: `M${cx} ${y - 6}v12` }), (s) => `${stamp(s.at)}: ${s.worker} was silent`);
    parts.push(svg("line", { class: "lane", x1: 0, x2: right, y1: 74, y2: 74 }));
    const ticks = width < 500 ? 2 : 4;
    for (let i = 0; i <= ticks; i++) {
      const text = span > 86400 ? stamp(from + (to - from) * i / ticks).slice(0, 10) : stamp(from + (to - from) * i / ticks).slice(11, span > 3600 ? 16 : 19);
      parts.push(svg("text", { class: "axis", x: right * i / ticks, y: 88, "text-anchor": i === 0 ? "start" : i === ticks ? "end" : "middle" }, text));
    }
    root.replaceChildren(...parts);
  }

  return { open, show };
})();
