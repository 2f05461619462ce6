"use strict";

// The table of all resources. Only cells whose text has changed are touched.
const resources = (() => {
  const { el } = page;
  const { duration, limit, short } = words;
  const $ = (id) => document.getElementById(id);
  const few = 100; // rows that are shown until somebody wants all
  const labels = ["Resource", "State", "Leader", "Epoch", "Silent", "Lease left", "Waiting"];
  const kinds = { led: "good", blocked: "bad", absent: "bad", unknown: "bad", electing: "bad", handover: "cold", paused: "cold", idle: "cold" };
  // What comes first needs somebody most.
  const order = ["blocked", "absent", "unknown", "electing", "handover", "", "paused", "idle", "led"];

  const rows = new Map(); // by key
  let all = false, sorted = false;

  const key = (v) => JSON.stringify([v.database, v.resource]);
  const link = (v) => "#/resource/" + encodeURIComponent(v.database) + "/" + encodeURIComponent(v.resource);

  // leader returns the worker of this proxy that leads, or did while its lease was confirmed.
  const leader = (v) => v.workers.find((w) => w.role === "leader" || w.role === "lapsed");

  // silence says for how long the leader has been silent, as far as time alone tells.
  function silence(v, passed) {
    const w = leader(v);
    if (!w) return null;
    const most = w.worker_timeout_seconds, s = w.silence_seconds < 2 ? 0 : w.silence_seconds + passed;
    return { text: s ? duration(s) : "active", limit: limit(most), near: most !== null && s > most / 2 };
  }

  // left says for how long the lease is still trusted. Another proxy may have renewed it since.
  function left(v, passed, clock) {
    if (v.lease_left_seconds !== undefined) return duration(v.lease_left_seconds - passed);
    if (v.confirmed_until) return "≥ " + duration((Date.parse(v.confirmed_until) - clock) / 1000);
    return v.leaderless_seconds > 0 ? "none" : "";
  }

  const age = (v, clock) => v.as_of ? (clock - Date.parse(v.as_of)) / 1000 : 0;

  function rank(v, passed) {
    const near = silence(v, passed);
    const doubt = v.state === "led" && (v.state_reason || v.election_error || v.takeover_blocked_by || near && near.near);
    return order.indexOf(doubt ? "" : v.state);
  }

  // since says for how long a state has lasted.
  const since = (v, clock) => v.state_since ? "for " + duration((clock - Date.parse(v.state_since)) / 1000) : "";

  // texts returns what the cells of a row show: a text, and a smaller one below it.
  function texts(v, passed, clock) {
    const who = v.leader || v.granted_to;
    const old = age(v, clock);
    const quiet = silence(v, passed);
    const waiting = v.waiting || [];
    return [
      [v.resource, v.database],
      [v.state, [since(v, clock), v.state_reason, v.election_error, ...(v.takeover_blocked_by || []).filter((by) => !(v.state_reason || "").includes(by)), ...(v.orders || []), v.enforce === "shadow" ? "shadow: nothing is refused" : "",
        old > 15 ? `known ${duration(old)} ago` : ""].filter(Boolean).join("; ")],
      [who, (v.leader || !who ? "" : "led last") + (v.proxy ? (v.leader || !who ? "" : ", ") + "through " + v.proxy : "")],
      [v.epoch ? String(v.epoch) : "", v.stale_writes ? v.stale_writes + " stale " + (v.stale_writes === 1 ? "write" : "writes") : ""],
      quiet ? [quiet.text, quiet.limit] : ["", ""],
      [left(v, passed, clock), ""],
      [waiting.length ? String(waiting.length) : "", waiting.slice(0, 3).join(", ") + (waiting.length > 3 ? " …" : "")],
    ];
  }

  // make makes the row of a resource, without texts, when it is shown for the first time.
  function make(r) {
    const cells = labels.map((label) => el("td", { role: "cell", "data-label": label }));
    cells[0].append(el("span", {}, el("a", { href: link(r.view) }), el("span", { class: "sub" })));
    cells[1].append(el("span", {}, el("span", { class: "tag" }), el("span", { class: "sub" })));
    r.cells = cells;
    r.tr = el("tr", { role: "row" }, ...cells);
  }

  // fill shows what has changed in a row. Without news, only time changes it, and a second is soon enough.
  function fill(r, clock) {
    if (r.filled > r.at && Math.abs(clock - r.filled) < 900) return;
    r.filled = clock;
    if (!r.tr) make(r);
    const passed = (clock - r.at) / 1000;
    texts(r.view, passed, clock).forEach(([main, sub], i) => {
      const text = main + "\n" + sub;
      if (r.shown[i] === text) return;
      r.shown[i] = text;
      const cell = r.cells[i];
      if (i === 0) {
        const [a, below] = cell.firstChild.children;
        a.replaceChildren(short(main));
        below.replaceChildren(short(sub));
      } else if (i === 1) {
        const [tag, below] = cell.firstChild.children;
        tag.textContent = main;
        tag.className = "tag " + (kinds[main] || "bad");
        below.replaceChildren(short(sub, 300));
      } else {
        cell.replaceChildren(...(text === "\n" ? [] : [el("span", {}, short(main), ...(sub ? [el("span", { class: "sub" }, short(sub))] : []))]));
      }
    });
    r.tr.classList.toggle("old", age(r.view, clock) > 15);
  }

  // take takes the resources of an event. They are new at the time of the proxy.
  function take(event, clock) {
    if (event.whole) {
      const here = new Set(event.resources.map(key));
      for (const k of rows.keys()) if (!here.has(k)) { rows.delete(k); sorted = false; }
    }
    for (const v of event.resources) {
      let r = rows.get(key(v));
      if (!r) { r = { tr: null, shown: [] }; rows.set(key(v), r); sorted = false; }
      Object.assign(r, { view: v, at: clock, text: "" });
    }
  }

  // matches reports whether all words of the search occur in a row.
  function matches(r, sought) {
    if (!sought.length) return true;
    r.text = r.text || JSON.stringify([r.view.resource, r.view.database, r.view.state, r.view.granted_to, r.view.proxy, r.view.waiting || [], r.view.workers.map((w) => w.worker)]).toLowerCase();
    return sought.every((word) => r.text.includes(JSON.stringify(word).slice(1, -1)));
  }

  // show brings the table up to date.
  function show(clock) {
    const sought = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = {};
    for (const r of rows.values()) {
      counts[r.view.state] = (counts[r.view.state] || 0) + 1;
      const now = rank(r.view, (clock - r.at) / 1000);
      if (now !== r.rank) { r.rank = now; sorted = false; }
    }
    if (!sorted) {
      const list = [...rows].sort(([a, x], [b, y]) => x.rank - y.rank || (a < b ? -1 : 1));
      rows.clear();
      for (const [k, r] of list) rows.set(k, r);
      sorted = true;
    }
    const found = [...rows.values()].filter((r) => matches(r, sought));
    const wanted = all ? found : found.slice(0, few);
    for (const r of wanted) fill(r, clock);
    place($("resources"), wanted.map((r) => r.tr));
    const text = order.filter((s) => counts[s]).map((s) => counts[s] + " " + s).join(", ") + (sought.length ? `; ${found.length} found` : "");
    if ($("count").textContent !== text) $("count").textContent = text;
    $("more").hidden = wanted.length === found.length;
    if (!$("more").hidden) $("more").textContent = "Show all " + found.length;
    $("none").hidden = found.length > 0;
    $("none").textContent = rows.size ? "No resource matches." : "No resource yet: no worker has connected with fencepost.resource, or this proxy cannot read its databases.";
  }

  // place has the body show these rows in this order, and moves no more of them than it must.
  function place(body, wanted) {
    const focus = body.contains(document.activeElement) ? document.activeElement : null;
    let at = body.firstChild, moved = false;
    for (const tr of wanted) {
      if (at && at !== tr && at.nextSibling === tr) { // one row is gone, or comes later
        at.remove();
        at = tr;
        moved = true;
      }
      if (at === tr) { at = at.nextSibling; continue; }
      body.insertBefore(tr, at);
      moved = true;
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; moved = true; }
    if (moved && focus && focus.isConnected && document.activeElement !== focus) focus.focus({ preventScroll: true });
  }

  $("search").addEventListener("input", () => { app.tick(); });
  $("more").addEventListener("click", () => { all = true; app.tick(); });

  // find returns a resource, with the time since it was told.
  const find = (database, resource) => rows.get(JSON.stringify([database, resource]));

  return { take, show, find, kinds, silence, left, since, age, link };
})();
