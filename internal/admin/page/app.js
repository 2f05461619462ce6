"use strict";

// The page follows the proxy, and says when it has lost it or its database.
const app = (() => {
  const { el } = page;
  const { duration, stamp } = words;
  const $ = (id) => document.getElementById(id);
  const views = ["resources", "resource", "connections", "refusals", "proxies"];
  const patience = 5000; // in which an event must come, in milliseconds
  let last = null; // the newest event
  let received = 0, offset = 0; // when it came, and how far the proxy's clock is ahead
  let events = null, began = Date.now(), view = "", troubles = "";
  let due = 0; // the next picture, which shows what came since the last one

  // clock is the time of the proxy, as long as that is heard of.
  const clock = () => (received && Date.now() - received > patience ? received : Date.now()) + offset;

  // follow opens the stream. A browser opens it again by itself, but not after an answer that is an error.
  function follow() {
    events = new EventSource("v1/events");
    events.onmessage = (message) => {
      last = JSON.parse(message.data);
      received = Date.now();
      offset = Date.parse(last.at) - received;
      resources.take(last, clock());
      due = due || requestAnimationFrame(() => { due = 0; tick(); });
    };
    events.onerror = () => { if (events.readyState === EventSource.CLOSED) setTimeout(follow, patience); };
  }

  // trouble lists what is wrong with the proxy: whether this page still hears of it, and what it says itself.
  function trouble() {
    const all = [], silent = Date.now() - (received || began);
    if (silent > patience) {
      all.push(["lost", received ? `The proxy has not answered since ${stamp(received)}. What is shown below is old.` : "The proxy does not answer."]);
    } else if (last) {
      const r = last.readiness;
      if (!r || last.readiness_age_seconds > patience / 1000) all.push(["", "The proxy still waits for Postgres: whether it is ready is not known."]);
      if (r) {
        if (r.upstream !== "ok") all.push(["lost", "Postgres cannot be used: " + r.upstream]);
        if (r.election !== "ok") all.push(["", "Lease service: " + r.election]);
        for (const f of r.faults || []) all.push(["", `${f.kind}, ${f.where}, since ${stamp(f.since)}: ${f.problem} ${f.remedy || ""}`]);
        if (r.draining) all.push(["", "The proxy is shutting down."]);
        if (r.restart_pending) all.push(["", "Changed in the configuration, and applied by a restart only: " + r.restart_pending.join(", ")]);
        if (r.reload_failed) all.push(["", `The reload of ${stamp(r.reload_failed)} has failed: the configuration, or a file of TLS, could not be used, and the earlier one holds. fencepost reload says what is wrong.`]);
        for (const h of (r.hosts || []).filter((h) => h.state !== "primary" && h.state !== "standby")) all.push(["", `Host ${h.address}: ${h.is}`]);
        for (const w of r.warnings || []) all.push(["", "Warning: " + w]);
      }
    }
    const text = JSON.stringify(all);
    if (text !== troubles) $("trouble").replaceChildren(...all.map(([kind, t]) => el("p", { class: "problem " + kind }, t)));
    troubles = text;
    document.body.classList.toggle("lost-proxy", silent > patience);
    const age = received ? (silent > patience ? "as of " + stamp(received) + ", " + duration(silent / 1000) + " ago" : "live") : "connecting";
    if ($("age").textContent !== age) $("age").textContent = age;
    $("age").classList.toggle("bad", silent > patience);
    const name = last ? page.plain(last.proxy) : "";
    if ($("proxy").textContent !== name) $("proxy").textContent = name;
  }

  // tick shows what is due.
  function tick() {
    trouble();
    if (!last) return;
    if (view === "resources") resources.show(clock());
    else if (view === "resource") resource.show(clock());
    else others.show[view]();
  }

  // route shows the view that the address names.
  function route() {
    if (location.hash !== "" && !location.hash.startsWith("#/")) return; // a part of the page
    const [path, query] = location.hash.slice(2).split("?");
    let parts;
    try {
      parts = path.split("/").map((p) => decodeURIComponent(p.replaceAll("+", " ")));
    } catch {
      parts = [""]; // no address of this page
    }
    const next = parts[0] === "resource" && parts.length === 3 ? "resource" : views.includes(parts[0]) && parts[0] !== "resource" ? parts[0] : "resources";
    if (next === "resource") resource.open(parts[1], parts[2], new URLSearchParams(query || ""));
    const other = next !== view;
    view = next;
    for (const v of views) $("view-" + v).hidden = v !== view;
    for (const a of document.querySelectorAll("nav a")) {
      if (a.hash === (view === "resources" ? "#/" : "#/" + view)) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
    }
    document.title = (view === "resource" ? page.plain(parts[2]) : view) + " · Fencepost";
    if (other && last) { window.scrollTo(0, 0); $("main").focus({ preventScroll: true }); }
    tick();
  }

  window.addEventListener("hashchange", route);
  setInterval(tick, 1000);
  return { clock, tick, start: () => { route(); follow(); } };
})();
app.start();
