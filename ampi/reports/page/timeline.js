/* The rows of the picture: each rank's own lane, and below it those of the threads that ran tasks. */
const ROWS = data.lanes.flatMap((number, rank) => [...Array(number).keys()].map((lane) => ({ rank, lane })));
const ROW = []; /* of a rank: the number of its first row */
ROWS.forEach(({ rank, lane }, row) => { if (!lane) ROW[rank] = row; });
const LANE = Math.max(14, Math.min(46, Math.floor(720 / ROWS.length)));
const LEFT = ROWS.length > data.ranks ? 66 : 52, TOP = 22;
/* The picture opens where something happens; imports before that may take most of the time of a short program. If compiling
   then takes most of the time, it opens after that, provided that much happens there. */
const [OPENING, SKIPS] = (() => {
  let first = data.end, compiled = 0, later = 0, number = 0;
  const each = (f) => { for (const lane of data.events) for (let k = 0; k < lane.length; k += 6) f(lane[k], lane[k] + lane[k + 1], lane[k + 4]); };
  each((begin, end, kind) => { first = Math.min(first, begin); if (kind === 4) compiled = Math.max(compiled, end); });
  each((begin) => { number++; if (begin >= compiled) later++; });
  const skips = compiled - first > 0.5 * (data.end - first) && later > 0.2 * number, from = skips ? compiled : first;
  return [from < data.end ? Math.max(0, from - 0.03 * (data.end - from)) : 0, skips];
})();
const view = { low: OPENING, high: data.end, name: "", comm: "", line: "", phase: "" };
const bundles = []; /* of each rank: the parts of kinds in the time of a few pixels, by their number */
const filtered = { events: 0, arrows: 0 };

{
  const used = new Set();
  for (const lane of data.events) for (let k = 2; k < lane.length; k += 6) used.add(lane[k]);
  for (const lane of data.tasks) for (let k = 3; k < lane.length; k += 5) used.add(lane[k]);
  for (const arrow of data.arrows) used.add(arrow[5]);
  const sites = [...used].map((s) => data.sites[s]);
  const distinct = (list) => [...new Set(list)].sort();
  const names = distinct(sites.map((s) => s.name)), lines = distinct(sites.map((s) => s.line).filter(Boolean));
  options($("by-phase"), ["", ...PHASES.keys()], ["all", ...PHASES]);
  options($("by-name"), ["", ...names], ["all", ...names]);
  options($("by-comm"), ["", ...data.comms.keys()], ["all", ...data.comms]);
  options($("by-line"), ["", ...lines], ["all", ...lines]);
  $("legend").innerHTML = COLOURS.map((c, k) => `<i style="background:${c}"></i>${KINDS[k]}`).join("") +
    `<i style="background:${FORWARD}"></i>message<i style="background:${BACKWARD}"></i>adjoint` +
    (data.edges.length ? `<i style="background:${BANDS[1]}"></i>task<i style="background:${BANDS[2]}"></i>adjoint of a task` : "") +
    BANDS.map((c, k) => `<i style="background:${c};height:4px;vertical-align:2px"></i>${PHASES[k]}`).join("");
}

/* Which sites pass the filters. */
function passing() {
  return data.sites.map((s) =>
    (!view.name || s.name === view.name) && (!view.line || s.line === view.line));
}

function lanes() {
  const width = Math.max($("lanes").clientWidth, 600), inner = width - LEFT - 8, height = TOP + LANE * ROWS.length + 6;
  const x = (t) => LEFT + ((t - view.low) / (view.high - view.low || 1)) * inner;
  const pass = passing(), parts = [], strip = LANE > 14 ? 4 : 2;
  const grain = ROWS.length > 16 ? 3 : 2;
  filtered.events = 0;
  for (let rank = 0; rank < data.ranks; rank++) {
    const y = TOP + ROW[rank] * LANE;
    data.phases[rank].forEach(([t, phase], k, all) => {
      if (phase < 0 || k + 1 === all.length) return;
      const a = Math.max(x(t), LEFT), b = Math.min(x(all[k + 1][0]), width - 8);
      if (b > a) parts.push(`<rect x="${a.toFixed(1)}" y="${y + LANE - strip}" width="${(b - a).toFixed(1)}" height="${strip}" fill="${BANDS[phase]}"/>`);
    });
    bars(rank, pass, x, y, inner, grain, parts);
    taskBars(rank, pass, x, inner, parts);
    if (LANE > 11 || rank % 4 === 0) parts.push(`<text x="6" y="${y + LANE / 2 + 4}">rank ${rank}</text>`);
    for (let lane = 1; lane < data.lanes[rank]; lane++) parts.push(`<text x="14" y="${y + (lane + 0.5) * LANE + 4}">worker ${lane}</text>`);
  }
  const places = ticks(view.low, view.high, inner / 110), apart = places.length > 1 ? places[1] - places[0] : view.high;
  for (const t of places) {
    parts.push(`<line x1="${x(t)}" x2="${x(t)}" y1="${TOP - 4}" y2="${height}" stroke="var(--grid)"/><text y="13" ${x(t) < width - 50 ? `x="${x(t) + 3}"` : `x="${x(t) - 3}" text-anchor="end"`}>${moment(t, apart, view.high)}</text>`);
  }
  parts.push(`<g clip-path="url(#inside)">`);
  taskEdges(x, parts);
  arrows(pass, x, width, parts);
  parts.push("</g>");
  $("lanes").innerHTML = `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><defs>` +
    `<marker id="head" viewBox="0 0 6 6" refX="5" refY="3" markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" orient="auto"><path d="M0,0L6,3L0,6z" fill="context-stroke"/></marker>` +
    `<clipPath id="inside"><rect x="${LEFT - 2}" y="0" width="${inner + 6}" height="${height}"/></clipPath></defs>` +
    parts.join("") + "</svg>";
  $("counted").textContent = `${filtered.events} events, ${filtered.arrows} messages in view`;
  $("lanes").dataset.events = filtered.events;
  $("lanes").dataset.arrows = filtered.arrows;
}

/* One lane; what is narrower than a few pixels is drawn together, each kind as high as its part of their time. */
function bars(rank, pass, x, y, inner, grain, parts) {
  const lane = data.events[rank], bins = new Map(), gap = LANE > 14 ? 2 : 1, strip = LANE > 14 ? 4 : 2, height = LANE - 2 * gap - strip;
  bundles[rank] = bins;
  for (let k = 0; k < lane.length; k += 6) {
    const begin = lane[k], end = begin + lane[k + 1], kind = lane[k + 4];
    if (end < view.low || begin > view.high || !pass[lane[k + 2]]) continue;
    if (view.comm !== "" && lane[k + 5] !== Number(view.comm)) continue;
    if (view.phase !== "" && lane[k + 3] !== Number(view.phase)) continue;
    filtered.events++;
    const a = Math.max(x(begin), LEFT), b = Math.min(x(end), LEFT + inner);
    if (b - a >= grain) {
      parts.push(`<rect x="${a.toFixed(2)}" y="${y + gap}" width="${(b - a).toFixed(2)}" height="${height}" fill="${COLOURS[kind]}" data-e="${k}"/>`);
      continue;
    }
    const bin = Math.floor(a / grain), entry = bins.get(bin) || { times: KINDS.map(() => 0), number: 0 };
    entry.times[kind] += b - a;
    entry.number++;
    bins.set(bin, entry);
  }
  const paths = KINDS.map(() => "");
  for (const [bin, { times }] of bins) {
    const whole = Math.max(sum(times), grain * 0.25); /* what is short must be seen, too */
    let low = y + gap + height;
    times.forEach((t, kind) => {
      if (!t) return;
      const high = (t / whole) * height * Math.min(1, Math.max(0.25, whole / grain));
      paths[kind] += `M${bin * grain},${low.toFixed(1)}h${grain}v${(-high).toFixed(1)}h${-grain}z`;
      low -= high;
    });
  }
  paths.forEach((path, kind) => path && parts.push(`<path class="bundle" d="${path}" fill="${COLOURS[kind]}" data-rank="${rank}" data-grain="${grain}"/>`));
}

/* The tasks of a rank and, in the sweep, their adjoints, in lanes of the threads that ran them. */
function taskBars(rank, pass, x, inner, parts) {
  const found = data.tasks[rank], gap = LANE > 14 ? 3 : 1, height = LANE - 2 * gap;
  for (let k = 0; k < found.length; k += 5) {
    const [begin, length, lane, site, phase] = found.slice(k, k + 5), end = begin + length;
    if (end < view.low || begin > view.high || !pass[site] || view.comm !== "") continue;
    if (view.phase !== "" && phase !== Number(view.phase)) continue;
    filtered.events++;
    const a = Math.max(x(begin), LEFT), b = Math.max(Math.min(x(end), LEFT + inner), a + 0.7), y = TOP + (ROW[rank] + lane) * LANE + gap;
    parts.push(`<rect class="task" x="${a.toFixed(2)}" y="${lane ? y : y + height - 6}" width="${(b - a).toFixed(2)}" height="${lane ? height : 6}" fill="${BANDS[phase]}" data-t="${k}" data-of="${rank}"/>`);
    const name = data.sites[site].name;
    if (lane && LANE > 17 && b - a > 7 * name.length) parts.push(`<text class="task" x="${((a + b) / 2).toFixed(1)}" y="${y + height / 2 + 4}" text-anchor="middle">${escaped(name)}</text>`);
  }
}

/* The edges of the graph of tasks: submits and results, in the sweep the other way round. */
function taskEdges(x, parts) {
  if (!$("with-edges").checked || view.comm !== "") return;
  const shown = data.edges.filter(([, a, , b, , phase]) => b >= view.low && a <= view.high && (view.phase === "" || phase === Number(view.phase)));
  const opacity = Math.max(0.15, Math.min(0.8, 250 / shown.length)).toFixed(2), heads = shown.length <= 300;
  for (const [rank, a, from, b, to, phase] of shown.slice(0, 4000)) {
    const middle = (lane) => TOP + (ROW[rank] + lane + 0.5) * LANE;
    parts.push(`<line class="arrow" x1="${x(a).toFixed(1)}" y1="${middle(from)}" x2="${x(b).toFixed(1)}" y2="${middle(to)}" stroke="${phase === 2 ? BACKWARD : FORWARD}" stroke-dasharray="3 2" stroke-opacity="${opacity}"${heads ? ' marker-end="url(#head)"' : ""}/>`);
  }
}

/* Messages; those between the same ranks that would lie on each other are one wider arrow. */
const MOST_SEPARATE = 150, MOST_BUNDLES = 1500;
function bundled(shown, x) {
  if (shown.length <= MOST_SEPARATE) return shown.map(([source, dest, left, came, size, , , phase]) => ({ source, dest, phase, from: x(left), to: x(came), number: 1, size }));
  for (let grain = 10; ; grain *= 2) {
    const found = new Map();
    for (const [source, dest, left, came, size, , , phase] of shown) {
      const a = x(left), b = x(came), key = [source, dest, phase === 2, Math.floor(a / grain), Math.floor(b / grain)].join();
      const one = found.get(key) || { source, dest, phase, from: 0, to: 0, number: 0, size: 0 };
      one.from += a;
      one.to += b;
      one.number++;
      one.size += Math.max(size, 0);
      found.set(key, one);
    }
    if (found.size <= MOST_BUNDLES || grain > 200) return [...found.values()].map((one) => ({ ...one, from: one.from / one.number, to: one.to / one.number }));
  }
}
function arrows(pass, x, width, parts) {
  const middle = (rank) => TOP + ROW[rank] * LANE + LANE / 2;
  const shown = data.arrows.filter(([, , left, came, , site, comm, phase]) =>
    came >= view.low && left <= view.high && pass[site] && (view.comm === "" || comm === Number(view.comm)) &&
    (view.phase === "" || phase === Number(view.phase)) && $(phase === 2 ? "with-adjoints" : "with-arrows").checked);
  filtered.arrows = shown.length;
  const drawn = bundled(shown, x), opacity = Math.max(0.25, Math.min(0.9, 300 / drawn.length)), heads = drawn.length <= 600;
  for (const { source, dest, phase, from, to, number, size } of drawn) {
    const said = `${phase === 2 ? "adjoint" : "message"}${number > 1 ? `s: ${number}` : ""}, ${bytes(Math.max(size, 0))}\nfrom rank ${source} to rank ${dest}`;
    parts.push(`<line class="arrow" x1="${from.toFixed(1)}" y1="${middle(source)}" x2="${to.toFixed(1)}" y2="${middle(dest)}" stroke="${phase === 2 ? BACKWARD : FORWARD}" stroke-width="${Math.min(5, 1 + 0.6 * Math.log2(number)).toFixed(1)}" stroke-opacity="${opacity.toFixed(2)}" data-said="${said}"${heads ? ' marker-end="url(#head)"' : ""}/>`);
  }
}

function zoom(factor, at) {
  const here = at === undefined ? (view.low + view.high) / 2 : at;
  move(here - (here - view.low) * factor, here + (view.high - here) * factor);
}
let drawn = 0;
function move(low, high) {
  const least = 20, length = Math.max(Math.min(high - low, data.end), Math.min(least, data.end));
  view.low = Math.max(0, Math.min(low, data.end - length));
  view.high = view.low + length;
  if (!drawn) drawn = requestAnimationFrame(() => { drawn = 0; lanes(); });
}
function toPhase(phase) {
  let low = Infinity, high = 0;
  for (const rank of data.phases) rank.forEach(([t, p], k) => {
    if (p === phase && k + 1 < rank.length && rank[k + 1][0] > t) { low = Math.min(low, t); high = Math.max(high, rank[k + 1][0]); }
  });
  if (high) move(low, high);
}

{
  const box = $("lanes");
  const at = (event) => {
    const frame = box.getBoundingClientRect();
    return view.low + ((event.clientX - frame.left - LEFT) / (frame.width - LEFT - 8)) * (view.high - view.low);
  };
  box.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event)); }, { passive: false });
  let held = null;
  box.addEventListener("mousedown", (event) => { held = at(event); event.preventDefault(); });
  addEventListener("mouseup", () => (held = null));
  addEventListener("mousemove", (event) => { if (held !== null) { const by = held - at(event); move(view.low + by, view.high + by); } });
  hover(box, (event) => {
    const { e: found, said, rank: lane_, grain, t: task, of } = event.target.dataset || {};
    if (held !== null) return "";
    if (said) return said;
    if (lane_ !== undefined) {
      const bin = bundles[lane_].get(Math.floor((event.clientX - box.getBoundingClientRect().left - 1) / grain));
      if (!bin) return "";
      const whole = sum(bin.times), parts = bin.times.map((t, k) => [t / whole, KINDS[k]]).filter(([t]) => t > 0.005).map(([t, kind]) => `${kind} ${(100 * t).toFixed(0)} %`);
      return `rank ${lane_}: ${bin.number} short operations\n${parts.join(", ")}`;
    }
    if (task !== undefined) {
      const [begin, length, by, number, phase] = data.tasks[of].slice(Number(task), Number(task) + 5);
      return `task ${data.sites[number].name}${phase === 2 ? " (adjoint)" : ""}\nsubmitted at ${data.sites[number].path}\nrank ${of}, ${by ? `worker ${by}` : "the tape's thread"}, ${time(length)} from ${time(begin)}`;
    }
    if (found === undefined) return "";
    const row = Math.floor((event.clientY - box.getBoundingClientRect().top - TOP) / LANE), rank = (ROWS[row] || {}).rank, lane = data.events[rank] || [], k = Number(found);
    if (!lane.length) return "";
    const site = data.sites[lane[k + 2]], waits = lane[k + 4] === WAITING;
    return `${lane[k + 4] === 4 ? "compiling for " : ""}${site.name}${waits ? " (waits)" : ""}\n${site.path || "no line of the program"}\nrank ${rank}, ${PHASES[lane[k + 3]]}, ${time(lane[k + 1])} from ${time(lane[k])}`;
  });
  for (const [id, key] of [["by-name", "name"], ["by-comm", "comm"], ["by-line", "line"]]) {
    $(id).addEventListener("change", (event) => { view[key] = event.target.value; lanes(); });
  }
  $("with-arrows").addEventListener("change", lanes);
  $("with-edges").addEventListener("change", lanes);
  $("with-edges").parentElement.hidden = !data.edges.length;
  $("with-adjoints").addEventListener("change", lanes);
  $("zoom-in").addEventListener("click", () => zoom(0.5));
  $("zoom-out").addEventListener("click", () => zoom(2));
  $("zoom-all").addEventListener("click", () => move(0, data.end));
  $("zoom-late").addEventListener("click", () => move(OPENING, data.end));
  $("zoom-late").hidden = $("opens-late").hidden = !SKIPS;
  $("by-phase").addEventListener("change", (event) => {
    view.phase = event.target.value;
    if (view.phase === "") move(OPENING, data.end);
    else toPhase(Number(view.phase));
    lanes();
  });
  addEventListener("resize", lanes);
  lanes();
}
