const LANE = Math.max(9, Math.min(34, Math.floor(640 / data.ranks)));
const LEFT = 52, TOP = 22;
const view = { low: 0, high: data.end, name: "", comm: "", line: "" };
const filtered = { events: 0, arrows: 0 };

{
  const used = new Set();
  for (const lane of data.events) for (let k = 2; k < lane.length; k += 6) used.add(lane[k]);
  for (const arrow of data.arrows) used.add(arrow[5]);
  const sites = [...used].map((s) => data.sites[s]);
  const distinct = (list) => [...new Set(list)].sort();
  const names = distinct(sites.map((s) => s.name)), lines = distinct(sites.map((s) => s.line).filter(Boolean));
  options($("by-name"), ["", ...names], ["all", ...names]);
  options($("by-comm"), ["", ...data.comms.keys()], ["all", ...data.comms]);
  options($("by-line"), ["", ...lines], ["all", ...lines]);
  $("legend").innerHTML = COLOURS.map((c, k) => `<i style="background:${c}"></i>${KINDS[k]}`).join("") +
    `<i style="background:${FORWARD}"></i>message<i style="background:${BACKWARD}"></i>adjoint` +
    BANDS.map((c, k) => `<i style="background:${c};height:4px;vertical-align:2px"></i>${PHASES[k]}`).join("");
}

/* Which sites pass the filters. */
function passing() {
  return data.sites.map((s) =>
    (!view.name || s.name === view.name) && (!view.line || s.line === view.line));
}

function lanes() {
  const width = Math.max($("lanes").clientWidth, 600), inner = width - LEFT - 8, height = TOP + LANE * data.ranks + 6;
  const x = (t) => LEFT + ((t - view.low) / (view.high - view.low || 1)) * inner;
  const pass = passing(), parts = [], strip = LANE > 14 ? 4 : 2;
  const grain = data.ranks > 16 ? 2 : 1;
  filtered.events = 0;
  for (let rank = 0; rank < data.ranks; rank++) {
    const y = TOP + rank * LANE;
    data.phases[rank].forEach(([t, phase], k, all) => {
      if (phase < 0 || k + 1 === all.length) return;
      const a = Math.max(x(t), LEFT), b = Math.min(x(all[k + 1][0]), width - 8);
      if (b > a) parts.push(`<rect x="${a.toFixed(1)}" y="${y + LANE - strip}" width="${(b - a).toFixed(1)}" height="${strip}" fill="${BANDS[phase]}"/>`);
    });
    bars(data.events[rank], pass, x, y, inner, grain, parts);
    if (LANE > 11 || rank % 4 === 0) parts.push(`<text x="6" y="${y + LANE / 2 + 4}">rank ${rank}</text>`);
  }
  const places = ticks(view.low, view.high, inner / 110), apart = places.length > 1 ? places[1] - places[0] : view.high;
  for (const t of places) {
    parts.push(`<line x1="${x(t)}" x2="${x(t)}" y1="${TOP - 4}" y2="${height}" stroke="#00000014"/><text y="13" ${x(t) < width - 50 ? `x="${x(t) + 3}"` : `x="${x(t) - 3}" text-anchor="end"`}>${moment(t, apart)}</text>`);
  }
  arrows(pass, x, width, parts);
  $("lanes").innerHTML = `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><defs>` +
    `<marker id="head" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto"><path d="M0,0L6,3L0,6z" fill="context-stroke"/></marker></defs>` +
    parts.join("") + "</svg>";
  $("counted").textContent = `${filtered.events} events, ${filtered.arrows} messages in view`;
  $("lanes").dataset.events = filtered.events;
  $("lanes").dataset.arrows = filtered.arrows;
}

/* One lane; what is narrower than a point is drawn together, as what took most of its time. */
function bars(lane, pass, x, y, inner, grain, parts) {
  const bins = new Map(), gap = LANE > 14 ? 2 : 1, strip = LANE > 14 ? 4 : 2;
  const rect = (a, w, kind, k) => parts.push(`<rect x="${a.toFixed(2)}" y="${y + gap}" width="${w.toFixed(2)}" height="${LANE - 2 * gap - strip}" fill="${COLOURS[kind]}"${k === undefined ? "" : ` data-e="${k}"`}/>`);
  const wide = [];
  for (let k = 0; k < lane.length; k += 6) {
    const begin = lane[k], end = begin + lane[k + 1];
    if (end < view.low || begin > view.high || !pass[lane[k + 2]]) continue;
    if (view.comm !== "" && lane[k + 5] !== Number(view.comm)) continue;
    filtered.events++;
    const a = Math.max(x(begin), LEFT), b = Math.min(x(end), LEFT + inner);
    if (b - a >= grain) {
      wide.push([a, b - a, lane[k + 4], k]);
    } else {
      const bin = Math.floor(a / grain);
      if (!bins.has(bin)) bins.set(bin, [0, 0, 0, 0]);
      bins.get(bin)[lane[k + 4]] += b - a + 1e-6;
    }
  }
  for (const [a, w, kind, k] of wide) rect(a, w, kind, k);
  let run = null;
  for (const bin of [...bins.keys()].sort((p, q) => p - q)) {
    const shares = bins.get(bin), kind = shares.indexOf(Math.max(...shares));
    if (run && run.kind === kind && run.end === bin) run.end = bin + 1;
    else {
      if (run) rect(run.begin * grain, (run.end - run.begin) * grain, run.kind);
      run = { kind, begin: bin, end: bin + 1 };
    }
  }
  if (run) rect(run.begin * grain, (run.end - run.begin) * grain, run.kind);
}

function arrows(pass, x, width, parts) {
  const middle = (rank) => TOP + rank * LANE + LANE / 2;
  const shown = data.arrows.filter(([, , left, came, , site, comm, phase]) =>
    came >= view.low && left <= view.high && pass[site] && (view.comm === "" || comm === Number(view.comm)) &&
    $(phase === 2 ? "with-adjoints" : "with-arrows").checked);
  filtered.arrows = shown.length;
  const opacity = Math.max(0.12, Math.min(0.9, 220 / shown.length)), heads = shown.length <= 400;
  for (const [source, dest, left, came, , , , phase] of shown) {
    parts.push(`<line class="arrow" x1="${x(left).toFixed(1)}" y1="${middle(source)}" x2="${x(came).toFixed(1)}" y2="${middle(dest)}" stroke="${phase === 2 ? BACKWARD : FORWARD}" stroke-opacity="${opacity.toFixed(2)}"${heads ? ' marker-end="url(#head)"' : ""}/>`);
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
    const found = event.target.dataset ? event.target.dataset.e : undefined;
    if (found === undefined || held !== null) return "";
    const rank = Math.floor((event.clientY - box.getBoundingClientRect().top - TOP) / LANE), lane = data.events[rank] || [], k = Number(found);
    if (!lane.length) return "";
    const site = data.sites[lane[k + 2]], waits = lane[k + 4] === 3;
    return `${site.name}${waits ? " (waits)" : ""}\n${site.path || "no line of the program"}\nrank ${rank}, ${PHASES[lane[k + 3]]}, ${time(lane[k + 1])} from ${time(lane[k])}`;
  });
  for (const [id, key] of [["by-name", "name"], ["by-comm", "comm"], ["by-line", "line"]]) {
    $(id).addEventListener("change", (event) => { view[key] = event.target.value; lanes(); });
  }
  $("with-arrows").addEventListener("change", lanes);
  $("with-adjoints").addEventListener("change", lanes);
  $("zoom-in").addEventListener("click", () => zoom(0.5));
  $("zoom-out").addEventListener("click", () => zoom(2));
  $("zoom-all").addEventListener("click", () => move(0, data.end));
  PHASES.forEach((name, k) => $(`zoom-${name}`).addEventListener("click", () => toPhase(k)));
  addEventListener("resize", lanes);
  lanes();
}
