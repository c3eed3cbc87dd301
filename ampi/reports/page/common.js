const data = JSON.parse(document.getElementById("data").textContent);
const PHASES = ["primal", "recording", "sweep"];
const BANDS = ["#9fb3c8", "#8fc1a9", "#eab676"];
const KINDS = ["NumPy", "kernel", "communication", "waiting", "compiling"];
const COLOURS = ["#6b8fb5", "#4f9d69", "#e0b02f", "var(--wait)", "#8f6fc4"];
const WAITING = 3;
const FORWARD = "#3d7fb5", BACKWARD = "#d9740b";

const $ = (id) => document.getElementById(id);
const sum = (list) => list.reduce((a, b) => a + b, 0);
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (n < 1024 || unit === "TiB") return (unit === "B" ? n : n.toFixed(n < 10 ? 2 : 1)) + " " + unit;
    n /= 1024;
  }
}
function seconds(s) {
  const a = Math.abs(s);
  if (a === 0) return "0";
  if (a < 1e-3) return (s * 1e6).toFixed(a < 1e-5 ? 1 : 0) + " µs";
  return a < 1 ? (s * 1e3).toFixed(a < 1e-2 ? 2 : 1) + " ms" : s.toFixed(2) + " s";
}
const time = (tenths) => seconds(tenths * 1e-7);
/* A moment on an axis that reaches so far, with as many digits as tell it from one that is a step later. */
function moment(tenths, step, reach) {
  const [unit, size] = step >= 1e4 && reach >= 3e6 ? ["s", 1e7] : step >= 1e2 ? ["ms", 1e4] : ["µs", 10];
  return `${(tenths / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)))} ${unit}`;
}

function options(select, values, texts) {
  select.innerHTML = values.map((v, k) => `<option value="${escaped(v)}">${escaped(texts ? texts[k] : v)}</option>`).join("");
}
function rankChoice(select, all) {
  const ranks = [...Array(data.ranks).keys()];
  options(select, all ? ["", ...ranks] : ranks, all ? ["all", ...ranks] : ranks);
}
/* The places of about n round numbers up to an end. */
function ticks(low, high, n) {
  const rough = (high - low) / n || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(t);
  return found;
}
/* A table: columns of {name, text: row -> string, value: row -> number or string, left, dear}. */
function show(element, columns, rows, state, last) {
  state.rows = rows;
  const draw = () => {
    if (state.column !== undefined) {
      const value = columns[state.column].value;
      state.rows = [...state.rows].sort((a, b) => (value(a) < value(b) ? 1 : value(a) > value(b) ? -1 : 0) * (state.up ? -1 : 1));
    }
    const mark = (k) => (k === state.column ? (state.up ? " ↑" : " ↓") : "");
    const head = columns.map((c, k) => `<th class="${c.left ? "text" : ""}" data-k="${k}">${c.name}${mark(k)}</th>`).join("");
    const groups = [];
    for (const { group } of columns) groups.length && groups[groups.length - 1][0] === group ? groups[groups.length - 1][1]++ : groups.push([group, 1]);
    const above = groups.some(([group]) => group) ? `<tr>${groups.map(([group, n]) => `<th class="group" colspan="${n}">${group || ""}</th>`).join("")}</tr>` : "";
    const cell = (c, r) => `<td class="${c.left ? "text" : c.dear && c.dear(r) ? "dear" : ""}"${c.title ? ` title="${escaped(c.title(r))}"` : ""}>${escaped(c.text(r))}</td>`;
    const line = (r, cls) => `<tr class="${cls}">${columns.map((c) => cell(c, r)).join("")}</tr>`;
    element.innerHTML = `<table><thead>${above}<tr>${head}</tr></thead><tbody>${state.rows.map((r) => line(r, "")).join("")}${(last || []).map((r) => line(r, r.part ? "part" : "total")).join("")}</tbody></table>`;
    element.querySelectorAll("th[data-k]").forEach((th) => th.addEventListener("click", () => {
      const k = Number(th.dataset.k);
      state.up = state.column === k ? !state.up : false;
      state.column = k;
      draw();
    }));
  };
  draw();
}
const tip = $("tip");
function hover(element, text) {
  element.addEventListener("mousemove", (event) => {
    const said = text(event);
    tip.hidden = !said;
    if (!said) return;
    tip.textContent = said;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  });
  element.addEventListener("mouseleave", () => (tip.hidden = true));
}
const lineOf = (site) => data.sites[site].line || "(no line)";
const label = (site) => `${lineOf(site)} ${data.sites[site].name}`;

{
  const totals = data.total.phases.map((ranks) => Math.max(...ranks));
  const parts = totals.map((t, k) => [t, PHASES[k]]).filter(([t]) => t > 0).map(([t, name]) => `${name} ${seconds(t)}`);
  const saved = sum(data.tape.map((t) => (t.saved || 0) + (t.kept || 0)));
  const hosts = new Set(data.hosts).size;
  $("summary").textContent = `${data.ranks} rank${data.ranks > 1 ? "s" : ""} on ${hosts} host${hosts > 1 ? "s" : ""}; slowest rank: ${parts.join(", ")}; ` +
    (data.matrix.length ? `${sum(data.matrix.map((e) => e[3]))} messages of ${bytes(sum(data.matrix.map((e) => e[4])))}` : "no tape has recorded messages") + (saved ? `; the tape saved ${bytes(saved)}` : "");
  $("notes").innerHTML = data.notes.map((n) => `<li>${escaped(n)}</li>`).join("");
}
