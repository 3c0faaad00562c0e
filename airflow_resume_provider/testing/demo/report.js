const svg = document.getElementById("loss"), tip = document.getElementById("tip");
const data = JSON.parse(document.getElementById("data").textContent);
const make = (name) => svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
const line = make("line"), dot = make("circle");
line.setAttribute("class", "grid");
line.setAttribute("y1", data.top);
line.setAttribute("y2", data.bottom);
dot.setAttribute("r", 5);
const show = (on) => [line, dot, tip].forEach((part) => { part.style.opacity = on ? 1 : 0; });
const move = (event) => {
  const box = svg.getBoundingClientRect(), scale = data.width / box.width;
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  let best = null, least = Infinity;
  for (const point of data.points) {
    const far = 4 * Math.abs(point[0] - x) + Math.abs(point[1] - y);
    if (far < least) { least = far; best = point; }
  }
  if (!best) return;
  const [px, py, attempt, step, loss, time, lost] = best;
  line.setAttribute("x1", px);
  line.setAttribute("x2", px);
  dot.setAttribute("cx", px);
  dot.setAttribute("cy", py);
  dot.setAttribute("fill", data.colours[attempt]);
  tip.textContent = `step ${step} · loss ${loss.toPrecision(3)} · attempt ${attempt} · ${time.toFixed(1)} s`
    + (lost ? " · lost, trained again" : "");
  const card = svg.parentElement.getBoundingClientRect();
  const left = px / scale + box.left - card.left, wide = tip.offsetWidth;
  tip.style.left = `${Math.max(8, Math.min(left + 14, card.width - wide - 8))}px`;
  tip.style.top = `${py / scale + box.top - card.top - 44}px`;
  show(true);
};
svg.addEventListener("pointermove", move);
svg.addEventListener("pointerleave", () => show(false));
show(false);
