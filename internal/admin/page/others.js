"use strict";

// The views of connections, of refused statements and of proxies.
const others = (() => {
  const { el } = page;
  const { duration, stamp, bytes, short, table, facts } = words;
  const $ = (id) => document.getElementById(id);

  // connections shows clients as the proxy lists them.
  function connections(into, body) {
    const rows = body.connections.map((c) => [
      short(c.database + " / " + c.user), el("span", {}, short(c.client), el("span", { class: "sub" }, short(c.application_name))),
      short([c.resource, ...(c.chosen || [])].filter(Boolean).join(", ")), short(c.worker), c.role, c.state, stamp(c.since),
      bytes(c.received_bytes) + " / " + bytes(c.sent_bytes), String(c.transactions)]);
    table(into, "Connections", ["Database / user", "Client", "Resource", "Worker", "Role", "State", "Since", "Received / sent", "Transactions"], rows, "No such client is connected to this proxy.");
    if (body.matching && !into.lastChild.classList.contains("note")) into.append(el("p", { class: "note" }));
    if (body.matching) into.lastChild.textContent = `The first ${body.connections.length} of ${body.matching}. Search for the others.`;
  }

  function refusals(body) {
    const all = body.databases.flatMap((d) => d.refusals.map((r) => ({ ...r, of: d.database }))).sort((a, b) => Date.parse(b.last) - Date.parse(a.last)).slice(0, 200);
    const unread = body.databases.filter((d) => d.error).map((d) => el("p", { class: "problem" }, `Database ${d.database} does not say: ${d.error}`));
    $("refusals-unread").replaceChildren(...unread);
    table($("refusals-table"), "Refusals", ["Last", "Resource", "Worker", "Epoch", "Current", "What", "Statement"], all.map((r) => [
      stamp(r.last), el("span", {}, r.resource ? el("a", { href: resources.link({ database: r.of, resource: r.resource }) }, short(r.resource)) : "-", el("span", { class: "sub" }, short(r.of))),
      el("span", {}, short(r.worker || "-"), el("span", { class: "sub" }, short(`${r.user}, ${r.client}`))), String(r.epoch), el("span", {}, String(r.current_epoch), el("span", { class: "sub" }, short(r.current_worker))),
      el("span", {}, `${r.count} × ${r.kind} ${r.write ? "write" : "read"}`, el("span", { class: "sub" }, r.sqlstate)), el("code", {}, short(r.statement || "(various, or unreadable)", 300))]),
      "Nothing was refused.");
  }

  function proxies(body) {
    const now = app.clock();
    facts($("this"), [["Name", body.proxy], ["Version", body.version + " (" + body.go_version + ")"], ["Started", stamp(body.started)], ["Clients", String(body.clients)],
      ["Configuration read", stamp(body.reloaded) + (body.reload_failed ? ", and not used: fencepost reload says why" : "")],
      ...Object.entries(body.certificates || {}).map(([which, at]) => ["Certificate of " + which, `until ${stamp(at)}, ${Date.parse(at) < now ? "expired" : "in " + duration((Date.parse(at) - now) / 1000)}`])]);
    table($("traffic"), "Traffic", ["Database", "Received", "Sent", "Transactions"], Object.entries(body.traffic).map(([d, t]) => [short(d), bytes(t.received_bytes), bytes(t.sent_bytes), String(t.transactions)]), "No client yet.");
    table($("proxies"), "All proxies", ["Proxy", "Database", "Seen", "Leading", "Workers"], body.proxies.map((p) => [
      short(p.name), short(p.database), p.age_seconds > 15 ? el("span", { class: "bad-text" }, `gone: ${duration(p.age_seconds)} ago`) : "now", String(p.leading), String(p.workers)]), "No proxy has said that a worker campaigns through it.");
  }

  $("refusals").append(el("div", { id: "refusals-unread" }), el("div", { id: "refusals-table" }));
  const clients = new Source("connections-age", ["connections"], (body) => connections($("connections"), body));
  const refused = new Source("refusals-age", ["refusals"], refusals);
  const known = new Source("proxies-age", ["this", "traffic", "proxies"], proxies);
  let searched = 0;
  $("match").addEventListener("input", () => { clearTimeout(searched); searched = setTimeout(() => app.tick(), 300); });

  return {
    connections,
    show: {
      connections: () => clients.ask("v1/connections?limit=500&match=" + encodeURIComponent($("match").value.trim()), 5),
      refusals: () => refused.ask("v1/refusals", 5),
      proxies: () => known.ask("v1/proxies", 5),
    },
  };
})();
