// The charts: lines and stacks (uPlot), and heat maps drawn into uPlot's axes. Each is a figure
// with a readout for the time under the pointer, and a table for those who cannot see it.

/* global uPlot */
import { bytes, count, percent, time } from "/data.js";

const FONT = "12px system-ui, sans-serif";
const HEIGHT = 200;
/** Steps of an axis of bytes. */
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
/** Steps of a heat map's colours. */
const SHADES = 64;

/** A colour of the style sheet. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The colour of the nth disk that is shown; the others together have that of -1. */
export const diskColour = (n) => colour(n < 0 ? "--rest" : `--disk-${n}`);

export function element(name, properties = {}, ...children) {
	const made = document.createElement(name);
	for (const [key, value] of Object.entries(properties)) {
		if (key in made && key !== "list") made[key] = value;
		else made.setAttribute(key, value);
	}
	made.append(...children);
	return made;
}

const two = (number) => String(number).padStart(2, "0");

/** A time of day; with seconds where they count. */
export function clock(unix, seconds = true) {
	const at = new Date(unix * 1000);
	const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
	return seconds ? `${text}:${two(at.getSeconds())}` : text;
}

/** Labels of the time axis: hours and minutes, and the day where it is another. */
function times(plot, splits, axis, space, step) {
	let day = null;
	return splits.map((unix) => {
		if (unix === null) return null;
		const at = new Date(unix * 1000);
		const isOther = day !== null && day !== at.getDate();
		day = at.getDate();
		const text = clock(unix, step < 60);
		return isOther || step >= 86400 ? `${text}\n${at.getMonth() + 1}-${two(at.getDate())}` : text;
	});
}

/** Of a logarithmic axis: labels and lines at powers of ten, and none between them. */
function onlyDecades() {
	const isPower = (value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6;
	const filter = (u, splits) => splits.map((value) => (value !== null && isPower(value) ? value : null));
	const line = colour("--line");
	return { filter, grid: { stroke: line, width: 1, filter }, ticks: { stroke: line, size: 4, filter } };
}

/** What all charts have in common. `spec` has `id`, `title`, `text`. */
class Chart {
	constructor(spec) {
		Object.assign(this, spec);
		this.plot = element("div", { className: "plot", tabIndex: 0, role: "img" });
		this.readout = element("p", { className: "readout" });
		this.legend = element("div", { className: "legend" });
		this.table = element("div", { className: "scroll" });
		this.details = element("details", {}, element("summary", { textContent: "As a table" }), this.table);
		this.details.querySelector("summary").setAttribute("aria-label", `${this.title} as a table`);
		this.heading = element("h3", { textContent: this.title, id: `${this.id}-title` });
		this.figure = element(
			"figure",
			{ id: this.id, "aria-labelledby": `${this.id}-title` },
			element("figcaption", {}, this.heading, element("p", { className: "hint", textContent: this.text })),
			this.legend,
			this.plot,
			this.readout,
			this.details,
		);
		this.details.addEventListener("toggle", () => this.fillTable());
		this.plot.addEventListener("keydown", (event) => this.key(event));
		this.plot.addEventListener("blur", () => this.u?.setCursor({ left: -10, top: -10 }));
		this.at = -1;
	}

	width() {
		return Math.max(240, this.plot.clientWidth);
	}

	resize() {
		if (this.u && this.width() !== this.u.width) this.u.setSize({ width: this.width(), height: this.height() });
	}

	height() {
		return HEIGHT;
	}

	axes(y) {
		const common = { stroke: colour("--soft"), font: FONT, ticks: { stroke: colour("--line"), size: 4 } };
		return [
			{ ...common, grid: { show: false }, values: times, space: 64, size: 32 },
			{ ...common, grid: { stroke: colour("--line"), width: 1 }, size: 58, ...y },
		];
	}

	/** Left and right move through time, Home and End to its ends; the readout follows. */
	key(event) {
		const xs = this.u?.data[0] ?? [];
		const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
		if (!(event.key in steps) || xs.length === 0 || event.ctrlKey || event.altKey || event.metaKey) return;
		event.preventDefault();
		const from = this.at < 0 || this.at >= xs.length ? xs.length : this.at;
		const to = Math.min(Math.max(from + steps[event.key], 0), xs.length - 1);
		this.u.setCursor({ left: this.u.valToPos(xs[to], "x"), top: this.u.over.clientHeight / 2 });
		this.at = to;
		this.say?.(this.readout.textContent);
	}

	/** The cursor is at this sample. */
	pointed(u) {
		const at = u.cursor.left >= 0 ? u.cursor.idx : null;
		this.at = at ?? -1;
		const text = at === null ? "" : this.readAt(at, u);
		if (this.readout.textContent !== text) this.readout.textContent = text;
	}

	base() {
		return {
			width: this.width(),
			height: this.height(),
			legend: { show: false },
			padding: [8, 8, 0, 0],
			cursor: { drag: { x: false, y: false }, sync: { key: "time" }, y: false, points: { size: 6 } },
			hooks: { setCursor: [(u) => this.pointed(u)] },
		};
	}

	make(options, data) {
		this.u?.destroy();
		this.u = new uPlot(options, data, this.plot);
	}

	/** Other colours, or another set of series: draw from nothing. */
	renew() {
		this.u?.destroy();
		this.u = null;
	}

	describe(text) {
		// Not said by itself: a screen reader reads it when the user comes here.
		const label = `${this.heading.textContent}. ${text}`;
		if (this.plot.getAttribute("aria-label") !== label) this.plot.setAttribute("aria-label", label);
	}

	fillTable() {
		if (!this.details.open || !this.model) return this.table.replaceChildren();
		const [head, ...rows] = this.tableRows();
		const cell = (tag) => (text, n) =>
			element(n === 0 && tag === "td" ? "th" : tag, {
				textContent: text,
				scope: tag === "th" ? "col" : "row",
				className: n === 0 ? "" : "number",
			});
		const { from, until } = this.model.view;
		this.table.replaceChildren(
			element(
				"table",
				{},
				element("caption", { textContent: `${this.heading.textContent}, ${clock(from)} to ${clock(until)}` }),
				element("thead", {}, element("tr", {}, ...head.map(cell("th")))),
				element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell("td"))))),
			),
		);
		Object.assign(this.table, { tabIndex: 0 });
		this.table.setAttribute("role", "region");
		this.table.setAttribute("aria-label", `${this.heading.textContent}: table`);
	}
}

const ends = (model) => model.view.samples.map((sample) => model.view.boot + sample.until);

/** Lines by disk, or a stack of them. `spec.series(model)` gives `{name, colour, values, …}`. */
export class Lines extends Chart {
	update(model) {
		this.model = model;
		const series = this.series(model);
		const data = [ends(model), ...this.stacked(series)];
		const key = JSON.stringify(series.map((s) => [s.name, s.colour, s.width, s.dash]));
		const isNew = !this.u || key !== this.seriesKey;
		this.seriesKey = key;
		this.shown = series;
		if (isNew) {
			this.make(this.options(series), data);
			this.drawLegend(series);
		}
		const { from, until } = model.view;
		this.u.batch(() => {
			this.u.setData(data, false);
			this.u.setScale("x", { min: from, max: until });
		});
		if (!series.some((s) => s.values.some((value) => value !== null && value > 0))) {
			this.describe(this.none ?? "Nothing in this time.");
		} else {
			const last = series.filter((s) => !s.isHidden).slice(0, 4);
			const now = last.map((s) => `${s.name} ${this.format(s.values.at(-1) ?? null)}`);
			this.describe(`Now: ${now.join(", ")}.`);
		}
	}

	/** Sums from below, the highest first, so that each is painted over the one above it. */
	stacked(series) {
		if (!this.isStack) return series.map((s) => s.values);
		const sums = [];
		let below = null;
		for (const { values } of series) {
			below = values.map((value, at) => (value === null ? null : value + (below?.[at] ?? 0)));
			sums.push(below);
		}
		return sums.reverse();
	}

	options(series) {
		const line = (s) => ({
			stroke: s.colour,
			width: s.width ?? 1.25,
			dash: s.dash,
			fill: this.isStack ? s.colour : undefined,
			points: { show: false },
			spanGaps: false,
			paths: this.isStack ? uPlot.paths.stepped({ align: -1 }) : undefined,
		});
		const lines = series.map(line);
		const top = (u, min, max) => {
			if (this.top) return [0, this.top];
			return [0, max > 0 ? max * 1.08 : 1];
		};
		// A decade around what is there, so that labels fit.
		const decades = (u, min, max) =>
			min > 0 ? [10 ** Math.floor(Math.log10(min)), 10 ** Math.ceil(Math.log10(max * 1.0001))] : [0.1, 10];
		return {
			...this.base(),
			scales: { x: { time: true }, y: this.isLog ? { distr: 3, range: decades } : { range: top } },
			axes: this.axes({
				values: (u, splits) => splits.map((v) => (v === null ? null : this.tick(v))),
				...(this.axisSize ? { size: this.axisSize } : {}),
				...(this.isBinary ? { incrs: POWERS } : {}),
				...(this.isLog ? onlyDecades() : {}),
			}),
			series: [{}, ...(this.isStack ? lines.reverse() : lines)],
		};
	}

	tick(value) {
		return this.format(value);
	}

	drawLegend(series) {
		this.legend.replaceChildren(
			...series.map((s) => {
				const mark = element("i", { className: s.dash ? "dash" : "" });
				mark.style.setProperty("--mark", s.colour);
				return element("span", {}, mark, s.name);
			}),
		);
	}

	readAt(at) {
		const parts = this.shown.map((s) => ({ name: s.name, value: s.values[at] }));
		const some = parts.filter((p) => p.value !== null && p.value !== undefined);
		const unix = this.u.data[0][at];
		return `${clock(unix)}  ${some.map((p) => `${p.name} ${this.format(p.value)}`).join(" · ") || "nothing"}`;
	}

	tableRows() {
		const rows = this.shown.map((s) => {
			const values = s.values.filter((value) => value !== null);
			const mean = values.reduce((sum, value) => sum + value, 0) / (values.length || 1);
			const highest = values.length ? Math.max(...values) : null;
			return [s.name, ...[s.values.at(-1) ?? null, values.length ? mean : null, highest].map((v) => this.format(v))];
		});
		return [["", "now", "mean", "highest"], ...rows];
	}
}

/** Colours from nothing to the most. */
function shades() {
	const stops = [0, 1, 2, 3, 4].map((n) => {
		const hex = colour(`--heat-${n}`);
		return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
	});
	return Array.from({ length: SHADES }, (_, n) => {
		const at = (n / (SHADES - 1)) * (stops.length - 1);
		const low = Math.min(Math.floor(at), stops.length - 2);
		return stops[low].map((from, c) => Math.round(from + (stops[low + 1][c] - from) * (at - low)));
	});
}

/**
 * Time from left to right, rows from below, or from above with `isDown`. The spec's `rows(model)`
 * says `{first, count}`, `cells(model, sample)` gives pairs of a row and a value, `shade(value,
 * model)` its place between 0 and 1.
 */
export class Heat extends Chart {
	update(model) {
		this.model = model;
		this.grid = this.rows(model);
		this.widen(this.isWide?.(model) ?? false);
		const { first, count: rows } = this.grid;
		const data = [ends(model), ends(model).map(() => null)];
		if (this.u && this.height() !== this.u.height) this.u.setSize({ width: this.width(), height: this.height() });
		if (!this.u) {
			this.make(this.options(), data);
			this.drawScale();
		}
		const { from, until } = model.view;
		this.u.batch(() => {
			this.u.setData(data, false);
			this.u.setScale("x", { min: from, max: until });
			this.u.setScale("y", { min: first, max: first + Math.max(rows, 1) });
		});
		this.describe(this.tell(model));
	}

	/** The whole width, before the other charts; or back to its place. */
	widen(isWide) {
		if (this.figure.classList.contains("wide") === isWide) return;
		this.figure.classList.toggle("wide", isWide);
		const parent = this.figure.parentElement;
		if (isWide) this.next = this.figure.nextElementSibling;
		parent.insertBefore(this.figure, isWide ? parent.firstElementChild : this.next);
	}

	height() {
		return this.tall ? this.tall(this.grid?.count ?? 1) + 42 : HEIGHT;
	}

	options() {
		const base = this.base();
		const splits = (u, axis, min, max) => this.splits(min, max, u);
		return {
			...base,
			cursor: { ...base.cursor, y: true, points: { show: false } },
			hooks: { ...base.hooks, draw: [(u) => this.paint(u)] },
			scales: { x: { time: true }, y: { range: (u, min, max) => [min, max], dir: this.isDown ? -1 : 1 } },
			axes: this.axes({
				splits,
				values: (u, at) => at.map((row) => this.label(row)),
				grid: { show: false },
				size: this.axisSize ?? 58,
				space: 14,
			}),
			series: [{}, { points: { show: false } }],
		};
	}

	paint(u) {
		const { first, count: rows } = this.grid;
		const { left, top, width, height } = u.bbox;
		const [columns, lines] = [Math.max(1, Math.round(width)), Math.max(1, rows)];
		const values = new Float32Array(columns * lines).fill(-1);
		const place = (unix) => Math.round(u.valToPos(unix, "x", true) - left);
		for (const sample of this.model.view.samples) {
			const from = Math.max(0, place(this.model.view.boot + sample.since));
			const until = Math.min(columns, Math.max(place(this.model.view.boot + sample.until), from + 1));
			for (const [row, value] of this.cells(this.model, sample)) {
				const line = this.isDown ? row - first : lines - 1 - (row - first);
				if (line < 0 || line >= lines) continue;
				const shade = this.shade(value, this.model, sample);
				for (let x = from; x < until; x++) {
					const at = line * columns + x;
					if (shade > values[at]) values[at] = shade;
				}
			}
		}
		const image = new ImageData(columns, lines);
		const palette = shades();
		values.forEach((value, at) => {
			if (value < 0) return;
			const [r, g, b] = palette[Math.min(SHADES - 1, Math.round(value * (SHADES - 1)))];
			image.data.set([r, g, b, 255], at * 4);
		});
		const canvas = new OffscreenCanvas(columns, lines);
		canvas.getContext("2d").putImageData(image, 0, 0);
		u.ctx.save();
		u.ctx.imageSmoothingEnabled = false;
		u.ctx.drawImage(canvas, left, top, width, height);
		u.ctx.restore();
		this.mark?.(u);
	}

	/** What the colours mean. */
	drawScale() {
		const [low, high] = this.scale;
		const bar = element("canvas", { className: "shades", width: SHADES, height: 1 });
		bar.setAttribute("aria-hidden", "true");
		const context = bar.getContext("2d");
		shades().forEach(([r, g, b], n) => {
			context.fillStyle = `rgb(${r} ${g} ${b})`;
			context.fillRect(n, 0, 1, 1);
		});
		this.legend.replaceChildren(element("span", {}, low), bar, element("span", {}, high));
	}

	readAt(at, u) {
		const sample = this.model.view.samples[at];
		const isByKey = document.activeElement === this.plot;
		const row = Math.floor(u.posToVal(u.cursor.top, "y"));
		const cells = [...this.cells(this.model, sample)];
		const text = clock(this.model.view.boot + sample.until);
		const isOver = u.over.matches(":hover") && !isByKey;
		const cell = cells.find(([of]) => of === row);
		if (isOver) return `${text}  ${this.name(row)}: ${cell ? this.format(cell[1]) : "nothing"}`;
		const most = cells.filter((c) => c[1] !== null).sort((a, b) => b[1] - a[1])[0];
		return most ? `${text}  most in ${this.name(most[0])}: ${this.format(most[1])}` : `${text}  nothing`;
	}

	tableRows() {
		return this.list(this.model);
	}
}

export const formats = { bytes, count, percent, time };
