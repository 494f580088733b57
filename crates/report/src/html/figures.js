// Draws the page's figures with uPlot, each from the JSON in it. All axes are linear to uPlot:
// values are taken to their scale here, so that ticks, zoom and readings need one way only.
/* global uPlot */
(function () {
  const FONT = "12px Arial, 'Liberation Sans', Helvetica, sans-serif";
  const COLOURS = 8;
  /** Pixels around the pointer in which a point is read. */
  const NEAR = 30;
  /** Ticks between powers of ten. */
  const FACTORS = [1, 2, 5, 10].map(Math.log10);
  /** Ends that differ by less than this part of them, or of one, are one value; as in `plot.rs`. */
  const FLAT = 1e-12;
  /** Units of time, each with its length in ms. */
  const TIMES = [["ns", 1e-6], ["µs", 1e-3], ["ms", 1], ["s", 1e3]];
  const SIZES = [["B", 2 ** -20], ["KiB", 2 ** -10], ["MiB", 1]];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const ends = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const isFlat = (low, high) => high - low <= FLAT * Math.max(1, Math.abs(low), Math.abs(high));
  const element = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  const raised = (power) => String(power).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  const number = (value, digits) => {
    if (value !== 0 && (Math.abs(value) >= 1e15 || Math.abs(value) < 1e-4)) return value.toExponential(2);
    const whole = Math.floor(Math.log10(Math.abs(value) || 1)) + 1;
    return value.toLocaleString("en", { maximumSignificantDigits: clamp(Math.max(digits, whole), 1, 21) });
  };
  /** A time in ms, in the unit that fits; as in `number.rs`. */
  const time = (ms) => {
    const [unit, length] = TIMES.find((of) => Math.abs(ms / of[1]) < 999.5) ?? TIMES[3];
    return ms === 0 ? "0 ms" : `${number(ms / length, 3)} ${unit}`;
  };
  /** A rate in MiB/s, in the unit that fits; as in `number.rs`. */
  const rate = (mib) => {
    const [unit, length] = SIZES.find((of) => Math.abs(mib / of[1]) < 999.5) ?? SIZES[2];
    return `${number(mib / length, 3)} ${unit}/s`;
  };
  /** A power of ten, or a small multiple of one, on a logarithmic axis. */
  const logLabel = (value) => {
    const power = Math.floor(value + 1e-9);
    const factor = Math.round(10 ** (value - power));
    if (power >= -3 && power <= 4) return number(factor * 10 ** power, 1);
    return (factor === 1 ? "" : `${factor}·`) + `10${raised(power)}`;
  };
  const ninesLabel = (value) => `${((1 - 10 ** -value) * 100).toFixed(Math.max(0, Math.round(value) - 2))} %`;

  /** How an axis of the report takes values to uPlot and back, and writes them. */
  class Axis {
    constructor(spec) {
      Object.assign(this, spec);
      this.exponent = 0;
    }

    /** A value's place. The last of a distribution, 1, has no end of nines: it has a tick above all others. */
    place(value) {
      if (value === null || this.scale === "linear") return value;
      if (this.scale === "log") return Math.log10(value);
      return value < 1 ? Math.min(-Math.log10(1 - value), 9) : this.whole;
    }

    /** Notes where the data end. */
    fit(values) {
      const some = values.filter((value) => value !== null);
      if (this.scale === "nines") {
        const tail = ends(some.filter((value) => value < 1).map((value) => -Math.log10(1 - value)))[1];
        this.whole = clamp(Math.ceil(tail - 1e-9), 1, 9) + 1;
      }
      const [low, high] = this.range ?? ends(some);
      this.data = [this.place(low), this.place(high)];
      const size = Math.max(Math.abs(low), Math.abs(high));
      const isLong = this.scale === "linear" && !this.percent && size > FLAT && (size < 1e-2 || size >= 1e5);
      // A window that is narrow beside its offset keeps all its digits instead.
      if (isLong && (isFlat(low, high) || (high - low) / size >= 1e-4)) this.exponent = Math.floor(Math.floor(Math.log10(size)) / 3) * 3;
      return this;
    }

    /** The ends of the axis for data with these ends. */
    rounded(low, high) {
      if (this.scale === "nines") return [0, clamp(Math.ceil(high - 1e-9), 1, this.whole)];
      if (this.range) return this.range.map((value) => this.place(value));
      if (this.from_zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
      if (isFlat(low, high)) {
        const size = Math.max(Math.abs(low), Math.abs(high));
        if (this.scale === "log") return [low - 0.3, high + 0.3];
        if (size <= FLAT) return [low < 0 ? -1 : 0, 1];
        return [low - size * 0.05, high + size * 0.05];
      }
      if (this.tight) return [low, high];
      if (this.scale === "log") {
        const around = (value) => FACTORS.map((factor) => Math.floor(value + 1e-9) + factor);
        const below = around(low).filter((at) => at <= low + 1e-9);
        return [below[below.length - 1], around(high).find((at) => at >= high - 1e-9)];
      }
      const power = 10 ** Math.floor(Math.log10((high - low) / 5));
      const nice = power * [1, 2, 5, 10].find((factor) => factor * power >= ((high - low) / 5) * (1 - 1e-9));
      return [Math.floor(low / nice + 1e-9) * nice, Math.ceil(high / nice - 1e-9) * nice];
    }

    /** The ends of an axis that can be zoomed: rounded if all is seen. */
    zoomed(low, high) {
      return low <= this.data[0] && high >= this.data[1] ? this.rounded(...this.data) : [low, high];
    }

    /** Ticks of scales that are not linear to the reader. */
    ticks(low, high, room) {
      const made = [];
      const factors = this.scale === "log" && (high - low) * 3 <= room ? FACTORS.slice(0, 3) : [0];
      const every = Math.max(1, Math.ceil((high - low) / room));
      for (let n = Math.floor(low); n <= Math.ceil(high); n++) {
        if (n % every === 0 || n === this.whole) made.push(...factors.map((factor) => n + factor));
      }
      return made.filter((tick) => tick >= low - 1e-9 && tick <= high + 1e-9);
    }

    labels(ticks, step) {
      if (this.scale === "log") return ticks.map(logLabel);
      if (this.scale === "nines") return ticks.map((tick) => (tick === this.whole ? "100 %" : ninesLabel(tick)));
      const unit = this.percent ? 0.01 : 10 ** this.exponent;
      const decimals = clamp(Math.ceil(-Math.log10(step / unit) - 1e-9), 0, 9);
      // A step of 2.5 needs one more.
      const more = ticks.some((t) => Math.abs((t / unit) * 10 ** decimals - Math.round((t / unit) * 10 ** decimals)) > 1e-6);
      const digits = { minimumFractionDigits: decimals + more, maximumFractionDigits: decimals + more };
      return ticks.map((t) => (t / unit).toLocaleString("en", digits) + (this.percent ? " %" : ""));
    }

    title() {
      const power = this.exponent === 0 ? "" : `10${raised(this.exponent)}`;
      const unit = [this.unit ? power : power && `× ${power}`, this.unit].filter(Boolean).join(" ");
      return unit ? `${this.label} (${unit})` : this.label;
    }

    /** A value as it was given, with its unit. */
    read(value) {
      if (value === null || value === undefined) return "–";
      if (this.unit === "ms") return time(value);
      if (this.unit === "MiB/s") return rate(value);
      if (!this.percent) return number(value, 4) + (this.unit ? ` ${this.unit}` : "");
      const tail = value < 1 && value > 0.99 ? Math.ceil(-Math.log10(1 - value)) : 2;
      return `${number(value * 100, Math.max(4, tail + 1))} %`;
    }

    /** For uPlot, with this many pixels a tick. */
    options(side, pixels, more) {
      const line = css("--line");
      const custom = (u, axis, low, high) => {
        const length = (side === 2 ? u.bbox.width : u.bbox.height) / devicePixelRatio;
        return this.ticks(low, high, Math.max(2, Math.floor(length / pixels)));
      };
      return {
        side, stroke: css("--ink"), font: FONT, labelFont: FONT, labelSize: 18, labelGap: 0, space: pixels,
        label: this.title(),
        grid: { stroke: line, width: 1 },
        ticks: { stroke: line, width: 1, size: 4 },
        border: { show: true, stroke: css("--soft"), width: 1 },
        splits: this.scale === "linear" ? undefined : custom,
        values: (u, ticks, axis, space, step) => this.labels(ticks, step),
        size: side === 2 ? 32 : (u, labels) => 14 + 6.6 * ends((labels ?? [""]).map((l) => l.length))[1],
        ...more,
      };
    }
  }

  /** All series' points as rows from left to right, each with one series' value: those of others are undefined there. */
  function aligned(series, x, y) {
    const rows = series.flatMap((s, n) => s.x.map((at, i) => [x.place(at), n, i]));
    rows.sort((a, b) => a[0] - b[0]);
    const data = [rows.map((row) => row[0])];
    const raw = [rows.map(([, n, i]) => series[n].x[i])];
    series.forEach((s, n) => {
      let isGap = false;
      const own = rows.map(([, of, i]) => {
        if (of !== n) return isGap ? null : undefined;
        isGap = s.y[i] === null;
        return s.y[i];
      });
      raw.push(own);
      data.push(own.map((value) => (value === undefined ? value : y.place(value))));
    });
    return { data, raw };
  }

  /** The rows of a series that no line reaches: those between gaps. */
  function alone(values) {
    const own = [...values.keys()].filter((i) => values[i] !== undefined);
    const isGap = (n) => (values[own[n]] ?? null) === null;
    return own.filter((_, n) => !isGap(n) && isGap(n - 1) && isGap(n + 1));
  }

  /** Are all points of a series in one place? */
  const isSpot = (series) => [series.x, series.y].every((of) => new Set(of.filter((v) => v !== null)).size <= 1);

  /** The row of a series that the pointer reads: the nearest of a cloud; of a line the one beside the pointer, if the line is there. */
  function nearest(u, n, at, isCloud) {
    const [xs, ys] = [u.data[0], u.data[n]];
    let [best, least, sides] = [null, Infinity, 0];
    const look = (i) => {
      const dx = Math.abs(u.valToPos(xs[i], "x") - u.cursor.left);
      if (isCloud && dx > NEAR) return false;
      if (ys[i] === null || ys[i] === undefined) return true;
      const far = isCloud ? Math.hypot(dx, u.valToPos(ys[i], "y") - u.cursor.top) : dx;
      if (far < least) [best, least] = [i, far];
      sides += !isCloud;
      return isCloud;
    };
    for (let i = at; i >= 0 && look(i); i--);
    for (let i = at + 1; i < xs.length && look(i); i++);
    return least <= NEAR || sides === 2 ? best : null;
  }

  const base = (host, height, more) => ({
    width: Math.max(200, host.clientWidth),
    height,
    padding: [8, 24, 0, 0],
    legend: { markers: { width: 2, dash: (u, n) => (u.series[n].dash ? "dashed" : "solid") } },
    cursor: { drag: { x: true, y: false }, points: { size: 6 }, y: false },
    ...more,
  });

  const look = (series) => {
    if (series.reference) return { colour: css("--reference"), dash: [1, 4] };
    const dash = [undefined, [7, 4], [7, 4, 1, 4]][Math.min(2, Math.floor(series.colour / 4))];
    return { colour: css(`--c${series.colour % COLOURS}`), dash };
  };

  /** Lines, or clouds of points; each panel has a y axis of its own. */
  function drawLines(spec, host) {
    const isCloud = spec.kind === "points";
    const x = new Axis(spec.x).fit(spec.panels.flat().flatMap((s) => s.x));
    const height = spec.panels.length > 1 ? 170 : isCloud ? 380 : 320;
    const few = spec.panels.flat().reduce((sum, s) => sum + s.x.length, 0) <= 400;
    return spec.panels.map((panel, n) => {
      const isLast = n + 1 === spec.panels.length;
      const y = new Axis(spec.y).fit(panel.flatMap((s) => s.y));
      const { data, raw } = aligned(panel, x, y);
      // A line's point beside the pointer may be at another x than the heading says.
      const read = (u, n, i) => {
        if (i === null) return "–";
        const [own, heading] = [i, u.cursor.idxs[0] ?? i].map((row) => x.read(raw[0][row]));
        return y.read(raw[n][i]) + (own === heading ? "" : ` at ${own}`);
      };
      const drawn = panel.map((s) => {
        const { colour, dash } = look(s);
        const points = isCloud
          ? { show: true, space: 0, size: few ? 5 : 2, width: 0, fill: colour, stroke: colour }
          : { show: s.x.length <= 24 || isSpot(s), size: 6, fill: colour, filter: (u, n, all) => (all ? null : alone(raw[n])) };
        return {
          label: s.name || y.label, stroke: colour, width: 1.75, dash, points,
          paths: isCloud ? () => null : undefined,
          value: (u, value, n, i) => read(u, n, i),
        };
      });
      return new uPlot(
        {
          ...base(host, height),
          scales: {
            x: { time: false, range: (u, low, high) => x.zoomed(low, high) },
            y: { range: (u, low, high) => y.rounded(...(low === null ? y.data : [low, high])) },
          },
          axes: [x.options(2, 60, isLast ? {} : { label: undefined }), y.options(3, 28)],
          series: [{ label: x.label, value: (u, value, n, i) => (i === null ? "–" : x.read(raw[0][i])) }, ...drawn],
          cursor: {
            drag: { x: true, y: false }, points: { size: 6 }, y: isCloud,
            focus: { prox: isCloud ? -1 : 24 },
            dataIdx: (u, n, at) => (n === 0 || u.cursor.left < 0 ? at : nearest(u, n, at, isCloud)),
          },
          focus: { alpha: 0.35 },
        },
        data, host,
      );
    });
  }

  /** Seek distances: bins of half a power of ten on both sides of zero. */
  function drawSeeks(spec, host) {
    const side = spec.panels[0].back.length;
    const slots = Array.from({ length: 2 * side + 1 }, (_, n) => n - side);
    const from = (bin) => Math.ceil(10 ** (bin / 2) - 1e-9);
    const name = (slot) => {
      if (slot === 0) return "zero";
      const bin = Math.abs(slot) - 1;
      const [low, high] = [from(bin), from(bin + 1) - 1].map((v) => number(v, 3));
      return `${low === high ? low : `${low} to ${high}`} ${spec.unit} ${slot < 0 ? "back" : "ahead"}`;
    };
    const share = new Axis({ label: "share", scale: "linear", percent: true });
    const counts = spec.panels.map((p) => [...p.back].reverse().concat(p.zero, p.ahead));
    const shares = counts.map((of) => of.map((n) => n / of.reduce((a, b) => a + b)));
    const top = Math.max(...shares.flat()) * 1.02;
    const splits = (u) => {
      const room = u.bbox.width / devicePixelRatio / slots.length;
      const every = Math.ceil(44 / (room * 2));
      const decades = Array.from({ length: Math.floor(side / 2 / every) }, (_, n) => (n + 1) * every * 2 + 0.5);
      return [...decades.map((at) => -at).reverse(), 0, ...decades];
    };
    const label = (at) => (at === 0 ? "0" : `${at < 0 ? "−" : ""}10${raised((Math.abs(at) - 0.5) / 2)}`);
    const unit = spec.unit ? ` (${spec.unit})` : "";
    return spec.panels.map((panel, n) => {
      // Cells with a count are visible.
      const seen = shares[n].map((v) => (v > 0 ? Math.max(v, top / 100) : null));
      const value = (u, v, of, i) => (i === null || v === null ? "–" : `${share.read(shares[n][i])} (${number(counts[n][i], 3)})`);
      const bars = (colour, keep) => ({
        label: keep(0) ? "at zero" : "elsewhere", stroke: css(colour), fill: css(colour), width: 0, value,
        paths: uPlot.paths.bars({ size: [0.9, 100] }), points: { show: false },
      });
      const isZero = (slot) => slot === 0;
      const isOther = (slot) => slot !== 0;
      const only = (keep) => seen.map((v, i) => (keep(slots[i]) ? v : null));
      host.append(element("p", { className: "panel", textContent: panel.heading }));
      return new uPlot(
        {
          ...base(host, spec.panels.length > 2 ? 150 : 200),
          scales: { x: { time: false, range: (u, a, b) => [a - 0.5, b + 0.5] }, y: { range: [0, top] } },
          axes: [
            new Axis({ label: `← back   ${spec.label}${unit}   ahead →`, scale: "linear" }).options(2, 40, {
              ...(n + 1 < spec.panels.length ? { label: undefined } : {}), splits, values: (u, ticks) => ticks.map(label), grid: { show: false },
            }),
            share.options(3, 28),
          ],
          series: [{ label: spec.label, value: (u, v, of, i) => (i === null ? "–" : name(slots[i])) },
            bars("--c0", isOther), bars("--c3", isZero)],
        },
        [slots, only(isOther), only(isZero)], host,
      );
    });
  }

  /** Cells in shades, and frames over them. */
  function drawMap(spec, host) {
    const [x, y] = [new Axis(spec.x).fit([]), new Axis(spec.y).fit([])];
    const { columns, levels } = spec;
    const rows = spec.cells.length / columns;
    const value = (level) => spec.least * (spec.largest / spec.least) ** (level / levels.length);
    const ramp = Array.from({ length: COLOURS }, (_, n) => css(`--q${n}`));
    const shade = (level) => ramp[Math.floor((level / levels.length) * COLOURS)].match(/\w\w/g).map((c) => parseInt(c, 16));
    const picture = element("canvas", { width: columns, height: rows });
    const pen = picture.getContext("2d");
    const pixels = pen.createImageData(columns, rows);
    [...spec.cells].forEach((cell, i) => {
      const level = levels.indexOf(cell);
      if (level >= 0) pixels.data.set([...shade(level), 255], 4 * i);
    });
    pen.putImageData(pixels, 0, 0);
    const key = element("p", { className: "legend" }, `${spec.value}, logarithmic: ${number(spec.least, 2)} `,
      element("span", {}, ...ramp.map((colour) => element("i", { style: `background:${colour};margin:0` })), ` ${number(spec.largest, 2)}`));
    const readout = element("p", { className: "readout", textContent: "\u00a0" });
    const paint = (u) => {
      const place = (at, scale) => u.valToPos(at, scale, true);
      const box = (xs, ys) => [place(xs[0], "x"), place(ys[1], "y"), place(xs[1], "x") - place(xs[0], "x"), place(ys[0], "y") - place(ys[1], "y")];
      u.ctx.save();
      u.ctx.beginPath();
      u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
      u.ctx.clip();
      u.ctx.imageSmoothingEnabled = false;
      u.ctx.drawImage(picture, ...box(x.data, y.data));
      u.ctx.strokeStyle = css("--outline");
      u.ctx.lineWidth = 1.25 * devicePixelRatio;
      for (const frame of spec.outlines) u.ctx.strokeRect(...box(frame.x.map((v) => x.place(v)), frame.y.map((v) => y.place(v))));
      u.ctx.restore();
    };
    const point = (u) => {
      const { left, top } = u.cursor;
      if (left < 0) return void (readout.textContent = "\u00a0");
      const at = [u.posToVal(left, "x"), u.posToVal(top, "y")];
      const part = (v, [low, high], count) => clamp(Math.floor(((v - low) / (high - low)) * count), 0, count - 1);
      const row = rows - 1 - part(at[1], y.data, rows);
      const level = levels.indexOf(spec.cells[row * columns + part(at[0], x.data, columns)]);
      const isIn = ([low, high], v, scale) => v >= low - Math.abs(u.posToVal(2, scale) - u.posToVal(0, scale)) && v <= high + Math.abs(u.posToVal(2, scale) - u.posToVal(0, scale));
      const frames = spec.outlines.filter((f) => isIn(f.x, at[0], "x") && isIn(f.y, at[1], "y")).slice(0, 3).map((f) => f.label);
      const cell = level < 0 ? "nothing" : number(value(level), 2);
      readout.textContent = [`${x.read(at[0])}, ${y.read(at[1])}: ${cell}`, ...frames].join(" · ");
    };
    host.append(key);
    const made = new uPlot(
      {
        ...base(host, 360),
        scales: { x: { time: false, range: (u, low, high) => [low, high] }, y: { range: y.data } },
        axes: [x.options(2, 60, { grid: { show: false } }), y.options(3, 28, { grid: { show: false } })],
        series: [{}, { points: { show: false }, paths: () => null }],
        legend: { show: false },
        cursor: { drag: { x: true, y: false }, points: { show: false } },
        hooks: { drawClear: [paint], setCursor: [point] },
      },
      [x.data, [null, null]], host,
    );
    host.append(readout);
    return [made];
  }

  const kinds = { lines: drawLines, points: drawLines, seeks: drawSeeks, map: drawMap };
  const figures = [...document.querySelectorAll(".plot")].map((host) => {
    const spec = JSON.parse(host.querySelector("script").textContent);
    return { host, spec, plots: [] };
  });
  function draw(figure) {
    figure.plots.forEach((plot) => plot.destroy());
    figure.host.replaceChildren();
    figure.plots = kinds[figure.spec.kind](figure.spec, figure.host);
  }
  const drawAll = () => figures.forEach(draw);
  drawAll();
  new ResizeObserver(() => {
    for (const { host, plots } of figures) {
      for (const plot of plots) {
        if (plot.width !== Math.max(200, host.clientWidth)) plot.setSize({ width: Math.max(200, host.clientWidth), height: plot.height });
      }
    }
  }).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  // Paper is white, whatever the screen is.
  const print = (isPaper) => {
    document.documentElement.classList.toggle("paper", isPaper);
    drawAll();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
