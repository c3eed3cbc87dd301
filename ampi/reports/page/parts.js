/* ------------------------------------------------------------------------------------------------- messages */

/* Number and bytes by source and destination, of the chosen line. */
function edges(entries, line) {
  const found = new Map();
  for (const [source, dest, site, count, size] of entries) {
    if (line && lineOf(site) !== line) continue;
    const key = source * data.ranks + dest, entry = found.get(key) || [source, dest, 0, 0];
    entry[2] += count;
    entry[3] += size;
    found.set(key, entry);
  }
  return [...found.values()];
}
function graph(element, list, colour, what) {
  const n = data.ranks, size = n > 16 ? 460 : 300, middle = size / 2, radius = middle - 34, dot = n > 24 ? 5 : 13;
  const place = (k) => [middle + radius * Math.sin((2 * Math.PI * k) / n), middle - radius * Math.cos((2 * Math.PI * k) / n)];
  const most = Math.max(...list.map((e) => e[what]), 1), parts = [];
  const opacity = Math.max(0.15, Math.min(0.85, 60 / list.length)), heads = list.length <= 250;
  for (const [source, dest, count, total] of [...list].sort((p, q) => p[what] - q[what])) {
    const share = [0, 0, count, total][what] / most, stroke = (0.6 + 4 * share).toFixed(2);
    const [ax, ay] = place(source), [bx, by] = place(dest);
    const said = ` data-said="${source} → ${dest}: ${count} messages, ${bytes(total)}"`;
    const style = `fill="none" stroke="${colour}" stroke-width="${stroke}" stroke-opacity="${opacity}"${said}`;
    if (source === dest) {
      parts.push(`<circle cx="${ax}" cy="${ay - dot - 5}" r="7" ${style}/>`);
      continue;
    }
    const dx = bx - ax, dy = by - ay, length = Math.hypot(dx, dy), bend = Math.min(0.14 * length, 40);
    const cx = (ax + bx) / 2 + (bend * dy) / length, cy = (ay + by) / 2 - (bend * dx) / length;
    const to = Math.hypot(bx - cx, by - cy), ex = bx - ((bx - cx) / to) * (dot + 3), ey = by - ((by - cy) / to) * (dot + 3);
    parts.push(`<path d="M${ax.toFixed(1)},${ay.toFixed(1)}Q${cx.toFixed(1)},${cy.toFixed(1)} ${ex.toFixed(1)},${ey.toFixed(1)}" ${style}${heads ? ` marker-end="url(#to-${element.id})"` : ""}/>`);
  }
  for (let k = 0; k < n; k++) {
    const [x, y] = place(k), far = dot > 6 ? 0 : 14;
    const tx = x + far * Math.sin((2 * Math.PI * k) / n), ty = y - far * Math.cos((2 * Math.PI * k) / n) + 4;
    parts.push(`<circle cx="${x}" cy="${y}" r="${dot}" fill="var(--paper)" stroke="var(--edge)"/>`);
    if (far === 0 || k % Math.ceil(n / 32) === 0) parts.push(`<text x="${tx}" y="${ty}" text-anchor="middle">${k}</text>`);
  }
  const none = list.length ? "" : `<text x="${middle}" y="${middle}" text-anchor="middle">none</text>`;
  element.innerHTML = `<svg viewBox="0 0 ${size} ${size}" style="max-width:${n > 16 ? 720 : 420}px"><defs><marker id="to-${element.id}" markerUnits="userSpaceOnUse" viewBox="0 0 6 6" refX="4" refY="3" markerWidth="9" markerHeight="9" orient="auto"><path d="M0,0L6,3L0,6z" fill="${colour}"/></marker></defs>${parts.join("")}${none}</svg>`;
}
function matrix(element, list, colour, what) {
  const n = data.ranks, cell = Math.max(7, Math.min(64, Math.floor(270 / n))), left = 30, size = left + n * cell + 4;
  const most = Math.max(...list.map((e) => e[what]), 1), parts = [`<rect x="${left}" y="${left}" width="${n * cell}" height="${n * cell}" fill="var(--panel)"/>`];
  for (const entry of list) {
    const [source, dest, count, total] = entry, share = entry[what] / most;
    parts.push(`<rect x="${left + dest * cell}" y="${left + source * cell}" width="${cell - 1}" height="${cell - 1}" fill="${colour}" fill-opacity="${(0.15 + 0.85 * share).toFixed(3)}" data-said="${source} → ${dest}: ${count} messages, ${bytes(total)}"/>`);
    if (cell >= 32) parts.push(`<text pointer-events="none" style="font-size:10px;fill:${share > 0.5 ? "#fff" : "var(--ink)"}" x="${left + (dest + 0.5) * cell}" y="${left + (source + 0.5) * cell + 4}" text-anchor="middle">${what === 3 ? bytes(total).replace("iB", "").replace(" ", "") : count}</text>`);
  }
  const every = Math.ceil(24 / cell);
  for (let k = 0; k < n; k += every) {
    parts.push(`<text x="${left + (k + 0.5) * cell}" y="${left - 6}" text-anchor="middle">${k}</text><text x="${left - 6}" y="${left + (k + 0.5) * cell + 4}" text-anchor="end">${k}</text>`);
  }
  element.innerHTML = `<svg viewBox="0 0 ${size} ${size}" style="max-width:${n > 16 ? 720 : 420}px">${parts.join("")}</svg>`;
}
const MOST_ROWS = 300;
function partners() {
  const chosen = $("partner-rank").value, line = $("message-line").value, found = new Map();
  const add = (entries, back) => {
    for (const [source, dest, site, count, size] of entries) {
      const from = back ? dest : source, to = back ? source : dest;
      if ((chosen !== "" && from !== Number(chosen)) || (line && lineOf(site) !== line)) continue;
      const key = `${site}/${from}/${to}`, entry = found.get(key) || { site, from, partner: to, numbers: [0, 0, 0, 0] };
      entry.numbers[back ? 2 : 0] += count;
      entry.numbers[back ? 3 : 1] += size;
      found.set(key, entry);
    }
  };
  add(data.matrix, false);
  add(data.reverse, true);
  const all = [...found.values()].sort((p, q) => q.numbers[1] - p.numbers[1]), rows = all.slice(0, MOST_ROWS);
  const number = (k) => ({ text: (r) => (k % 2 ? bytes(r.numbers[k]) : r.numbers[k]), value: (r) => r.numbers[k] });
  show($("partners"), [
    { name: "line", left: true, text: (r) => label(r.site), value: (r) => label(r.site), title: (r) => data.sites[r.site].path },
    { name: "from", text: (r) => r.from, value: (r) => r.from }, { name: "to", text: (r) => r.partner, value: (r) => r.partner },
    { name: "messages", ...number(0) }, { name: "bytes", ...number(1) },
    { name: "adjoints back", ...number(2) }, { name: "bytes back", ...number(3) },
  ], rows, {});
  if (all.length > rows.length) $("partners").insertAdjacentHTML("beforeend", `<p class="hint">${all.length - rows.length} more, of fewer bytes: choose a rank or a line</p>`);
}
function messages() {
  const line = $("message-line").value, what = $("message-what").value === "bytes" ? 3 : 2;
  const there = edges(data.matrix, line), back = edges(data.reverse, line);
  graph($("graph"), there, FORWARD, what);
  graph($("graph-back"), back, BACKWARD, what);
  matrix($("matrix"), there, FORWARD, what);
  matrix($("matrix-back"), back, BACKWARD, what);
  partners();
}
{
  const lines = [...new Set(data.matrix.map((e) => lineOf(e[2])))].sort();
  options($("message-line"), ["", ...lines], ["all", ...lines]);
  rankChoice($("partner-rank"), true);
  for (const id of ["message-line", "message-what"]) $(id).addEventListener("change", messages);
  $("partner-rank").addEventListener("change", partners);
  for (const id of ["graph", "graph-back", "matrix", "matrix-back"]) hover($(id), (event) => event.target.dataset.said || "");
  if (data.ranks > 16) $("pictures").className = "pair many";
  $("adjoints").textContent = data.adjoints;
  messages();
  show($("collectives"), [
    { name: "line", left: true, text: (r) => label(r[1]), value: (r) => label(r[1]), title: (r) => data.sites[r[1]].path },
    { name: "communicator", left: true, text: (r) => data.comms[r[0]], value: (r) => r[0] },
    { name: "calls (all ranks)", text: (r) => r[2], value: (r) => r[2] },
    { name: "bytes sent", text: (r) => bytes(r[3]), value: (r) => r[3] },
    { name: "calls with an adjoint", text: (r) => r[4], value: (r) => r[4] },
  ], data.collectives, {});
  if (!data.collectives.length) $("collectives").innerHTML = '<p class="hint">No tape has recorded a collective on buffers. Collectives outside of tapes are among the source lines below, and those of Python objects among the messages.</p>';
}

/* --------------------------------------------------------------------------------------------------- memory */

const AREAS = ["#4e79a7", "#59a14f", "#b07aa1", "#edc948", "#76b7b2", "#ff9da7", "#9c755f", "#bab0ac"];
function memory() {
  const rank = Number($("memory-rank").value), here = data.memory[rank];
  if (!here.curve.length && !here.shadows.length && !here.held.length) {
    $("memory-curve").innerHTML = '<p class="hint">No tape has kept anything on this rank.</p>';
    $("memory-legend").innerHTML = $("memory-lines").innerHTML = "";
    return;
  }
  const sized = here.sites.map(([site, saved, kept, shadows]) => ({ site, saved, kept, shadows })).filter((s) => s.saved + s.kept + s.shadows)
    .sort((p, q) => q.saved + q.kept + q.shadows - p.saved - p.kept - p.shadows);
  const shown = sized.slice(0, 7).map((s) => s.site), index = new Map(shown.map((s, k) => [s, k]));
  const width = Math.max($("memory-curve").clientWidth, 600), height = 260, left = 70, bottom = 24, top = 8;
  const rows = (curve) => curve.map(([t, sizes]) => {
    const row = new Array(shown.length + 1).fill(0);
    for (const [site, size] of Object.entries(sizes)) row[index.has(Number(site)) ? index.get(Number(site)) : shown.length] += size;
    return [t, row];
  });
  const layers = rows(here.curve), shadows = rows(here.shadows), swept = here.shadows.map(([t, sizes]) => [t, sum(Object.values(sizes))]);
  const most = Math.max(1, ...layers.map(([, row]) => sum(row)), ...swept.map(([, s]) => s), ...here.held.map(([, s]) => s));
  const unit = 1024 ** Math.floor(Math.log2(most) / 10);
  const moments = [...here.curve, ...here.shadows, ...here.held].map(([t]) => t);
  const from = Math.min(...moments), length = (Math.max(...moments) - from) * 1.05 || 1;
  const x = (t) => left + ((t - from) / length) * (width - left - 10), y = (s) => height - bottom - (s / most) * (height - bottom - top);
  const parts = [];
  for (const s of ticks(0, most / unit, 4).map((k) => k * unit)) parts.push(`<line x1="${left}" x2="${width - 10}" y1="${y(s)}" y2="${y(s)}" stroke="var(--grid)"/><text x="${left - 6}" y="${y(s) + 4}" text-anchor="end">${bytes(s)}</text>`);
  const places = ticks(from, from + length, 8), apart = places.length > 1 ? places[1] - places[0] : length;
  for (const t of places) parts.push(`<text x="${x(t)}" y="${height - 8}"${x(t) > width - 60 ? ' text-anchor="end"' : ""}>${moment(t, apart, from + length)}</text>`);
  if (layers.length) layers.push([from + length, layers[layers.length - 1][1]]);
  const areas = (layers, style) => { for (let k = 0; k <= shown.length; k++) {
    if (!layers.some(([, row]) => row[k])) continue;
    const below = (row) => sum(row.slice(0, k)), up = [], down = [];
    layers.forEach(([t, row], n) => {
      if (n) { up.push(`${x(t).toFixed(1)},${y(below(layers[n - 1][1]) + layers[n - 1][1][k]).toFixed(1)}`); down.push(`${x(t).toFixed(1)},${y(below(layers[n - 1][1])).toFixed(1)}`); }
      up.push(`${x(t).toFixed(1)},${y(below(row) + row[k]).toFixed(1)}`);
      down.push(`${x(t).toFixed(1)},${y(below(row)).toFixed(1)}`);
    });
    parts.push(`<polygon points="${up.concat(down.reverse()).join(" ")}" fill="${AREAS[k % AREAS.length]}" ${style}/>`);
  } };
  areas(layers, 'fill-opacity="0.75"');
  areas(shadows, 'class="shadow" fill-opacity="0.95" stroke="#b3261e" stroke-width="0.5"');
  const stepped = (curve) => curve.flatMap(([t, s], k) => [[t, k ? curve[k - 1][1] : 0], [t, s]]).map(([t, s]) => `${x(t).toFixed(1)},${y(s).toFixed(1)}`).join(" ");
  if (swept.length) parts.push(`<polyline points="${stepped(swept)}" fill="none" stroke="#b3261e" stroke-width="1.5"/>`);
  const held = here.held.concat(here.held.slice(-1).map(([, s]) => [from + length, s]));
  if (held.length) parts.push(`<polyline id="held" points="${stepped(held)}" fill="none" stroke="var(--ink)" stroke-width="1.2" stroke-dasharray="4 2"/>`);
  const stored = here.checkpoints.filter(([, s]) => s > 0), freed = here.checkpoints.length - stored.length;
  for (const [t, s] of stored) parts.push(`<path d="M${x(t) - 4},${y(0)}h8l-4,-8z" fill="var(--ink)" data-said="checkpoint of ${bytes(s)} at ${time(t)}"/>`);
  $("memory-curve").innerHTML = `<svg viewBox="0 0 ${width} ${height}">${parts.join("")}</svg>`;
  $("memory-legend").innerHTML = shown.map((s, k) => `<i style="background:${AREAS[k]}"></i>${escaped(label(s))}`).join("") +
    (sized.length > shown.length ? `<i style="background:${AREAS[shown.length]}"></i>${sized.length - shown.length} others` : "") +
    `<i style="background:#b3261e"></i>adjoints (shadows) during sweeps, by line` + (stored.length ? ` &nbsp; ▲ ${stored.length} checkpoints, ${bytes(sum(stored.map(([, s]) => s)))} written; ${freed} freed; <i style="background:var(--ink);height:2px;vertical-align:3px"></i>checkpoints in memory` : "");
  const total = { site: null, saved: here.most[0], kept: here.most[1], shadows: Math.max(0, ...swept.map(([, s]) => s)) };
  const size = (name, f) => ({ name, text: (r) => bytes(f(r)), value: f });
  show($("memory-lines"), [
    { name: "line (peak)", left: true, text: (r) => (r.site === null ? "all lines" : label(r.site)), value: (r) => label(r.site) },
    size("overwritten values", (r) => r.saved), size("values saved by kernels", (r) => r.kept), size("tape", (r) => r.saved + r.kept),
    size("adjoints (shadows)", (r) => r.shadows),
  ], sized, {}, [total]);
}
rankChoice($("memory-rank"), false);
$("memory-rank").addEventListener("change", memory);
addEventListener("resize", memory);
hover($("memory-curve"), (event) => event.target.dataset.said || "");
memory();

/* ---------------------------------------------------------------------------------------------------- lines */

const sorting = {};
function lines() {
  const chosen = $("lines-rank").value, of = (list) => (chosen === "" ? sum(list) : list[Number(chosen)]);
  const spent = (r) => r.seconds.map(of), grand = data.total.phases.map(of);
  const dear = (r) => { if (!r.calls) return false; /* a sum */ const [, recording, sweep] = spent(r); return recording + sweep > 0.15 * (grand[1] + grand[2]); };
  /* Of a call that is recorded, with its part of the sweep, and of one of the primal. */
  const quotient = (r) => { if (!r.calls) return -1; const [p, a, b] = spent(r).map((t, k) => t - of(r.waits[k])), [n, m] = r.calls.map(of); return p && n && m ? (a + b) / m / (p / n) : -1; };
  const seconds_ = (name, k) => ({ name, group: "time", text: (r) => seconds(spent(r)[k]), value: (r) => spent(r)[k], dear: k ? dear : null });
  const waited = (r) => sum(r.waits.map(of));
  const count = (name, k) => ({ name, group: "calls", text: (r) => (r.calls ? of(r.calls[k]) : ""), value: (r) => of(r.calls[k]) });
  const sized = (name, key) => ({ name, text: (r) => (r[key] && (key !== "bytes" || r.counted) ? bytes(of(r[key])) : ""), value: (r) => of(r[key]) });
  const columns = [
    { name: "line", left: true, text: (r) => r.line, value: (r) => r.line, title: (r) => r.path },
    { name: "what", left: true, text: (r) => r.names.join(", "), value: (r) => r.names.join(), title: (r) => r.names.join("\n") },
    count("primal", 0), count("recording", 1), count("sweep", 2),
    { ...sized("messages", "bytes"), group: "bytes" }, { ...sized("tape", "tape"), group: "bytes" },
    { name: "compiling", group: "once", text: (r) => (r.compiled && of(r.compiled) ? seconds(of(r.compiled)) : ""), value: (r) => of(r.compiled) },
    seconds_("primal", 0), seconds_("recording", 1), seconds_("sweep", 2),
    { name: "waiting", group: "time", text: (r) => (r.waits && waited(r) ? seconds(waited(r)) : ""), value: waited },
    { name: "gradient ÷ primal", group: "per call", text: (r) => (quotient(r) < 0 ? "" : quotient(r).toFixed(2)), value: quotient },
  ];
  const apart = data.total.compiled.map((t, k) => Math.max(0, t - sum(data.table.map((r) => r.compiled[k]))));
  const rest = Object.entries(data.total.parts).filter(([, parts]) => sum(parts.map(of))).map(([name, parts]) => ({ line: "elsewhere", names: [name], path: "", seconds: parts, part: true }));
  if (of(apart) > 5e-5) rest.unshift({ line: "elsewhere", names: ["compiling"], path: "", seconds: data.total.phases.map((t) => t.map(() => 0)), compiled: apart, part: true });
  const all = { line: "total", names: ["compiling included"], path: "", seconds: data.total.phases, compiled: data.total.compiled };
  show($("lines-table"), columns, data.table, sorting, [...rest, all]);
}
rankChoice($("lines-rank"), true);
$("lines-rank").addEventListener("change", lines);
lines();

/* ---------------------------------------------------------------------------------------------------- check */

function curve(points) {
  const kept = points.filter(([h, e]) => h > 0 && e > 0);
  if (kept.length < 2) return "";
  const log = Math.log10, hs = kept.map(([h]) => log(h)), es = kept.map(([, e]) => log(e));
  const ends = (v) => [Math.floor(Math.min(...v)), Math.max(Math.ceil(Math.max(...v)), Math.floor(Math.min(...v)) + 1)];
  const [h0, h1] = ends(hs), [e0, e1] = ends(es), x = (v) => 52 + ((v - h0) / (h1 - h0)) * 350, y = (v) => 200 - ((v - e0) / (e1 - e0)) * 180;
  const parts = [];
  for (let k = h0; k <= h1; k++) parts.push(`<text x="${x(k)}" y="216" text-anchor="middle">1e${k}</text><line x1="${x(k)}" x2="${x(k)}" y1="20" y2="200" stroke="var(--grid)"/>`);
  for (let k = e0; k <= e1; k += Math.ceil((e1 - e0) / 8)) parts.push(`<text x="46" y="${y(k) + 4}" text-anchor="end">1e${k}</text><line x1="52" x2="402" y1="${y(k)}" y2="${y(k)}" stroke="var(--grid)"/>`);
  parts.push(`<polyline fill="none" stroke="${FORWARD}" stroke-width="1.5" points="${kept.map((_, k) => `${x(hs[k])},${y(es[k])}`).join(" ")}"/>`);
  kept.forEach((_, k) => parts.push(`<circle cx="${x(hs[k])}" cy="${y(es[k])}" r="3" fill="${FORWARD}"/>`));
  return `<svg viewBox="0 0 420 240">${parts.join("")}<text x="227" y="234" text-anchor="middle">step of the finite differences</text><text x="56" y="14">difference from the gradient</text></svg>`;
}
$("checks").innerHTML = (data.check || []).map((c) =>
  `<div class="check"><div><p class="${c.passed ? "passed" : "failed"}">${c.passed ? "passed" : "FAILED"}</p><pre>${escaped(c.text)}</pre>` +
  (c.worst ? `<p>Worst entry: ${escaped(c.worst)}</p>` : "") + `</div><div>${curve(c.curve || [])}</div></div>`).join("") ||
  '<p class="hint">The gradient was not checked. <code>ampi run --check</code> compares it with finite differences; in a program, pass the result of <code>ampi.testing.dot_test</code> or <code>taylor_test</code> as <code>check=</code> to <code>ampi.report</code>.</p>';
