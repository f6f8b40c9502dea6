// Draws rates over time as SVG: two lines on one scale, the newest at the right.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 78, right: 8, top: 10, bottom: 24 };

export function make(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// `series` is { every, places, to_clients, from_clients }. `show` gets a text for the point under the pointer, or an empty one.
// `whose` says whose rates these are: one client's or all clients'.
export function draw(place, series, format, show, whose) {
  const width = Math.max(place.clientWidth, 260);
  const height = 208;
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const count = series.to_clients.length;
  const top = niceTop(Math.max(...series.to_clients, ...series.from_clients, 1000));
  const x = (index) => MARGIN.left + inner.width * (1 - (count - 1 - index) / (series.places - 1));
  const y = (value) => MARGIN.top + inner.height * (1 - value / top);
  const chart = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(series, format, whose) });

  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const level = y(top * part);
    chart.append(make("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: level, y2: level }));
    if (part % 0.5 === 0) chart.append(make("text", { x: MARGIN.left - 8, y: level + 4, "text-anchor": "end" }, format(top * part)));
  }
  const span = series.every * (series.places - 1);
  const parts = width < 640 ? [0, 0.5, 1] : span < 3600 ? [0, 0.2, 0.4, 0.6, 0.8, 1] : [0, 0.25, 0.5, 0.75, 1];
  for (const part of parts) {
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    const text = part === 1 ? "now" : ago(span * (1 - part));
    chart.append(make("text", { x: MARGIN.left + inner.width * part, y: height - 6, "text-anchor": anchor }, text));
  }
  if (count === 1) {
    // A line of no length with round ends is a dot.
    const dot = (kind, value) => make("path", { class: `rate ${kind} dot`, d: `M${x(0).toFixed(1)} ${y(value).toFixed(1)}h0` });
    chart.append(dot("in", series.from_clients[0]), dot("out", series.to_clients[0]));
  }
  if (count > 1) {
    const line = (values) => values.map((value, index) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
    const area = `M${x(0).toFixed(1)} ${y(0)}L${line(series.to_clients)}L${x(count - 1).toFixed(1)} ${y(0)}Z`;
    chart.append(
      make("path", { class: "area", d: area }),
      make("path", { class: "rate in", d: `M${line(series.from_clients)}` }),
      make("path", { class: "rate out", d: `M${line(series.to_clients)}` }),
    );
  }
  point(chart, series, { x, width, inner, height, count }, format, (what) => show(what && `${what} from ${whose}`));
  place.replaceChildren(chart);
}

function point(chart, series, { x, width, inner, height, count }, format, show) {
  const mark = make("line", { class: "mark", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
  chart.append(mark);
  chart.addEventListener("pointermove", (event) => {
    const at = (event.offsetX / chart.clientWidth) * width;
    const index = Math.round(count - 1 - (1 - (at - MARGIN.left) / inner.width) * (series.places - 1));
    if (index < 0 || index >= count) return;
    mark.setAttribute("x1", x(index));
    mark.setAttribute("x2", x(index));
    mark.setAttribute("visibility", "visible");
    const when = index === count - 1 ? "now" : ago((count - 1 - index) * series.every);
    show(`${when}: ${format(series.to_clients[index])} to, ${format(series.from_clients[index])}`);
  });
  chart.addEventListener("pointerleave", () => {
    mark.setAttribute("visibility", "hidden");
    show("");
  });
}

function describe(series, format, whose) {
  const told = (values) => (values.length ? `${format(values.at(-1))} now, ${format(Math.max(...values))} at most` : "nothing yet");
  return `Rates over ${ago(series.every * series.places).replace(" ago", "")}. To ${whose}: ${told(series.to_clients)}. From ${whose}: ${told(series.from_clients)}.`;
}

function ago(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

// The smallest of 1, 2, 4 and 10 times a power of ten that is not below `most`. Half of it is a round number too.
function niceTop(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return power * [1, 2, 4, 10].find((step) => step * power >= most);
}
