// The page: asks the daemon each second, and keeps what is on the screen up to date.

import { Gone, Store, bytes, change, count, get, percent } from "/data.js";
import { diskColour, element } from "/charts.js";
import { COLUMNS, drawPairs, drawProcesses, lasting, setText, slowRow } from "/parts.js";
import { SHOWN, charts } from "/views.js";

const PERIOD_MS = 1000;
/** The slow requests change seldom, and cost the daemon's reactors a question. */
const SLOW_EVERY = 3;
const by = (id) => document.getElementById(id);

const store = new Store();
const view = {
	device: null,
	disk: null,
	range: 600,
	sort: { key: "name", isDown: false },
	filter: "",
	isPaused: false,
	token: sessionStorage.getItem("seekway-token") ?? "",
	/** Disks with a colour of their own, by device. */
	shown: new Map(),
};
let drawn = []; // the charts
let polls = 0;

// --- What is polite to say -------------------------------------------------------------------

function say(text) {
	by("say").textContent = text;
}

/** How it stands with the daemon; it is said only when it changes. */
function setState(state, text) {
	const node = by("state");
	node.dataset.state = state;
	setText(node, text);
}

// --- What is selected ------------------------------------------------------------------------

const devices = () => store.status?.report.devices ?? [];
const device = () => devices().find((d) => d.name === view.device);
const disk = () => device()?.disks.find((d) => d.name === view.disk);
const sampleNow = () => store.recent.at(-1)?.devices.get(view.device);
const secondsNow = () => {
	const last = store.recent.at(-1);
	return last ? Math.max(last.until - last.since, 1e-3) : 1;
};

/** Keep the selection on something that is there. */
function settle() {
	if (!device()) view.device = (devices().find((d) => d.disks.length > 0) ?? devices()[0])?.name ?? null;
	if (!disk()) view.disk = device()?.disks.map((d) => d.name).sort(naturally)[0] ?? null;
}

const naturally = new Intl.Collator("en", { numeric: true }).compare;

/** Settles which disks have a colour: those that had most of the device, and as long as they do. */
function chooseColoured(samples) {
	const names = (device()?.disks ?? []).map((d) => d.name).sort(naturally);
	const before = (view.shown.get(view.device) ?? []).filter((name) => names.includes(name));
	if (names.length <= SHOWN) {
		view.shown.set(view.device, names);
		return;
	}
	if (before.length < SHOWN || polls % 15 === 0) {
		const all = new Map(names.map((name) => [name, 0]));
		for (const sample of samples) {
			const on = sample.devices.get(view.device);
			if (on) for (const name of names) all.set(name, all.get(name) + (on.of(name, "device_time_ms") ?? 0));
		}
		const most = [...all].sort((a, b) => b[1] - a[1]).slice(0, SHOWN).map(([name]) => name);
		// Those that stay keep their colours.
		const kept = before.map((name) => (most.includes(name) ? name : null));
		while (kept.length < SHOWN) kept.push(null);
		for (const name of most) if (!kept.includes(name)) kept[kept.indexOf(null)] = name;
		view.shown.set(view.device, kept);
	}
}

/** The same, with the selected one after them if it is not among them. */
function colouredDisks() {
	const shown = view.shown.get(view.device) ?? [];
	return view.disk && !shown.includes(view.disk) ? [...shown, view.disk] : shown;
}

function select(name) {
	if (name === view.disk) return;
	view.disk = name;
	say(`${name} is selected`);
	draw();
	refetch();
}

// --- The tables ------------------------------------------------------------------------------

function rows() {
	const [now, length] = [sampleNow(), secondsNow()];
	const of = (name, column) => now?.of(name, column) ?? 0;
	const all = (device()?.disks ?? []).map((d) => ({
		name: d.name,
		weight: d.weight,
		iops: (of(d.name, "reads") + of(d.name, "writes")) / length,
		read: of(d.name, "read_bytes") / length,
		written: of(d.name, "written_bytes") / length,
		p50: now?.of(d.name, "p50_ms") ?? null,
		p99: now?.of(d.name, "p99_ms") ?? null,
		share: now?.disksMs > 0 ? of(d.name, "device_time_ms") / now.disksMs : null,
		waiting: d.outstanding,
		why: (store.status.reasons[d.name] ?? [""])[0],
	}));
	const { key, isDown } = view.sort;
	const order = (a, b) => (key === "name" || key === "why" ? naturally(a[key], b[key]) : (b[key] ?? -1) - (a[key] ?? -1));
	all.sort((a, b) => order(a, b) || naturally(a.name, b.name));
	return isDown ? all.reverse() : all;
}

function makeHead() {
	const head = COLUMNS.map(([key, title]) => {
		const button = element("button", { type: "button", textContent: title });
		button.addEventListener("click", () => {
			view.sort = { key, isDown: view.sort.key === key && !view.sort.isDown };
			drawDisks();
		});
		const isNumber = !["name", "why"].includes(key);
		const cell = element("th", { scope: "col", className: isNumber ? "number" : "" }, button);
		cell.dataset.key = key;
		return cell;
	});
	by("disk-table").tHead.rows[0].replaceChildren(...head);
}

/** A row of a disk. Its cells' texts change, the nodes stay: whoever reads them keeps the place. */
function makeRow(name) {
	const button = element("button", { type: "button", className: "pick" }, element("i", { className: "chip" }), name);
	const cells = COLUMNS.slice(1).map(([key]) => {
		const cell = element("td", { className: key === "why" ? "why" : "number" });
		cell.dataset.key = key;
		return cell;
	});
	const row = element("tr", {}, element("th", { scope: "row" }, button), ...cells);
	row.dataset.disk = name;
	row.addEventListener("click", () => {
		select(name);
		button.focus({ preventScroll: true });
	});
	return row;
}

function drawDisks() {
	const body = by("disk-table").tBodies[0];
	const there = new Map([...body.rows].map((row) => [row.dataset.disk, row]));
	const all = rows();
	const wanted = all.filter((row) => row.name.toLowerCase().includes(view.filter));
	const focused = document.activeElement?.closest?.("#disk-table tbody tr")?.dataset.disk;
	const shown = colouredDisks();
	const ordered = wanted.map((row) => {
		const node = there.get(row.name) ?? makeRow(row.name);
		const isSelected = row.name === view.disk;
		const button = node.querySelector(".pick");
		if (node.classList.contains("selected") !== isSelected || !button.hasAttribute("aria-pressed")) {
			node.classList.toggle("selected", isSelected);
			button.setAttribute("aria-pressed", String(isSelected));
		}
		button.tabIndex = isSelected || (wanted[0] === row && !wanted.some((r) => r.name === view.disk)) ? 0 : -1;
		const n = shown.indexOf(row.name);
		button.querySelector(".chip").style.setProperty("--mark", diskColour(n));
		COLUMNS.slice(1).forEach(([key, , format], at) => {
			const cell = node.cells[at + 1];
			setText(cell, format(row));
			if (key === "share") cell.style.setProperty("--part", String(row.share ?? 0));
			if (key === "why" && cell.title !== row.why) cell.title = row.why;
		});
		return node;
	});
	const isSame = ordered.length === body.rows.length && ordered.every((node, at) => body.rows[at] === node);
	if (!isSame) {
		body.replaceChildren(...ordered);
		// A node that is moved loses the focus.
		if (focused) body.querySelector(`tr[data-disk="${CSS.escape(focused)}"] .pick`)?.focus({ preventScroll: true });
	}
	for (const cell of by("disk-table").tHead.rows[0].cells) {
		const { key, isDown } = view.sort;
		const isRising = ["name", "why"].includes(key) !== isDown;
		if (cell.dataset.key === key) cell.setAttribute("aria-sort", isRising ? "ascending" : "descending");
		else cell.removeAttribute("aria-sort");
	}
	by("filter-label").hidden = all.length <= 12;
	setText(by("disks-title"), all.length === 1 ? "Disk" : `Disks (${all.length})`);
}

/** Up and down select, as in a list. */
function keyInDisks(event) {
	if (!event.target.matches?.(".pick")) return;
	const buttons = [...by("disk-table").tBodies[0].querySelectorAll(".pick")];
	const at = buttons.indexOf(event.target);
	const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10, Home: -1e6, End: 1e6 };
	if (!(event.key in steps)) return;
	event.preventDefault();
	const to = buttons[Math.min(Math.max(at + steps[event.key], 0), buttons.length - 1)];
	select(to.closest("tr").dataset.disk);
	to.focus();
}

function drawDevices() {
	const nav = by("devices");
	nav.hidden = devices().length < 2;
	const names = devices().map((d) => d.name);
	if ([...nav.children].map((b) => b.dataset.device).join("/") !== names.join("/")) {
		nav.replaceChildren(
			...names.map((name) => {
				const button = element("button", { type: "button", textContent: name });
				button.dataset.device = name;
				button.addEventListener("click", () => {
					view.device = name;
					view.disk = null;
					settle();
					draw();
					refetch();
				});
				return button;
			}),
		);
	}
	for (const button of nav.children) button.setAttribute("aria-pressed", String(button.dataset.device === view.device));
}

function drawDevice() {
	const on = device();
	setText(by("device-title"), on ? `Device ${on.name}` : "No device");
	if (!on) return drawPairs(by("tiles"), []);
	const [now, length] = [sampleNow(), secondsNow()];
	const ofTime = (ms) => percent(Math.min(1, ms / 1000 / length));
	const held = Object.entries(now?.held_ms ?? {}).sort((a, b) => b[1] - a[1]);
	const heldMs = held.reduce((sum, [, ms]) => sum + ms, 0);
	const tiles = [
		["Policy", on.policy, on.emulated ? `emulates ${on.emulated.profile}` : ""],
		["Busy", now ? ofTime(now.service_ms) : "–", "of the last second"],
		["On the device", `${on.in_flight} of ${on.depth}`, "commands now, at most"],
		["In the queue", count(Math.max(0, on.outstanding - on.in_flight)), "requests"],
		["Left idle by the policy", now ? ofTime(heldMs) : "–", held.slice(0, 2).map(([why, ms]) => `${why} ${ofTime(ms)}`).join(", ")],
		["Fairness", on.fairness.jain === undefined ? "–" : on.fairness.jain.toFixed(3), on.fairness.jain === undefined ? "fewer than two busy disks" : "Jain’s index; 1 is fair"],
	];
	if (on.cache) {
		const { resident_bytes: resident, capacity_bytes: most, prefetcher } = on.cache;
		tiles.push(["Cache", `${bytes(resident)}`, `of ${bytes(most)}; ${prefetcher}`]);
	}
	drawPairs(by("tiles"), tiles);
}

function drawDisk() {
	const one = disk();
	setText(by("disk-title"), one ? `Disk ${one.name}` : "No disk is selected");
	if (!one) {
		by("why").replaceChildren();
		by("processes").replaceChildren();
		return drawPairs(by("facts"), []);
	}
	const reasons = store.status.reasons[one.name] ?? [];
	const errors = Object.values(one.ops).reduce((sum, op) => sum + op.errors, 0);
	const lead = one.outstanding === 0 ? "Nothing waits." : `${one.outstanding} ${one.outstanding === 1 ? "request is" : "requests are"} under way.`;
	const text = JSON.stringify([lead, reasons, one.warnings]);
	if (by("why").dataset.text !== text) {
		by("why").dataset.text = text;
		by("why").replaceChildren(
			element("p", { textContent: lead }),
			element("ul", {}, ...reasons.map((reason) => element("li", { textContent: reason }))),
			...(one.warnings ?? []).map((warning) => element("p", { className: "warning", textContent: warning })),
		);
	}
	const facts = [
		["Image", one.path],
		["Size", bytes(one.capacity_bytes)],
		["Limits", one.limits],
	];
	if (one.read_only) facts.push(["Writes", "refused: the disk is read-only"]);
	if (errors > 0) facts.push(["Failed requests", count(errors)]);
	if (one.cache) facts.push(["In the cache", bytes(one.cache.resident_bytes)]);
	drawPairs(by("facts"), facts);
	drawProcesses(by("processes"), one.cache?.processes ?? []);
	drawChange(one);
}

// --- Changes ---------------------------------------------------------------------------------

/** What is typed stays while the page goes on: the forms are made once for each disk. */
function drawChange(one) {
	const box = by("change");
	const key = JSON.stringify([store.status.control, view.token !== "", one.name, view.device]);
	if (box.dataset.key === key) return;
	box.dataset.key = key;
	if (!store.status.control) {
		return box.replaceChildren(element("p", { className: "hint", textContent: "This page is read-only. With serve --web-control TOKENFILE it can change weights, limits and policies." }));
	}
	const answer = element("p", { role: "status", className: "answer" });
	const form = (title, input, verb, send) => {
		const id = `change-${title.toLowerCase().replace(/\W+/g, "-")}`;
		input.id = id;
		input.autocomplete = "off";
		const made = element("form", {}, element("label", { htmlFor: id, textContent: title }), input, element("button", { type: "submit", textContent: verb, "aria-label": `${verb} ${title.toLowerCase()}` }));
		made.addEventListener("submit", async (event) => {
			event.preventDefault();
			setText(answer, await send(input.value.trim()));
		});
		return made;
	};
	if (view.token === "") {
		const token = element("input", { type: "password", required: true });
		const unlock = form("Token", token, "Unlock", (text) => {
			view.token = text;
			sessionStorage.setItem("seekway-token", text);
			drawChange(disk() ?? one);
			by("change").querySelector("input")?.focus();
			return "";
		});
		return box.replaceChildren(element("h3", { textContent: "Change it" }), unlock, element("p", { className: "hint", textContent: "The token is the text in the file of --web-control. It stays in this tab." }), answer);
	}
	const done = async (word, body) => {
		const wrong = await change(word, body, view.token);
		if (wrong === "the token is not the right one") lock();
		return wrong ?? "done";
	};
	const weight = element("input", { type: "number", min: 1, max: 4294967295, value: one.weight, required: true });
	const limits = element("input", { type: "text", value: one.limits, required: true, spellcheck: false });
	const policy = element("input", { type: "text", value: device()?.policy ?? "", required: true, spellcheck: false });
	const [name, on] = [one.name, view.device];
	const leave = element("button", { type: "button", textContent: "Lock" });
	leave.addEventListener("click", lock);
	box.replaceChildren(
		element("h3", { textContent: "Change it" }),
		form("Weight", weight, "Set", (text) => done("weight", { disk: name, weight: Number(text) })),
		form("Limits", limits, "Set", (text) => done("limit", { disk: name, limits: text })),
		form("Policy of the device", policy, "Set", (text) => done("policy", { policy: text, device: on })),
		answer,
		leave,
	);
}

function lock() {
	view.token = "";
	sessionStorage.removeItem("seekway-token");
	by("change").dataset.key = "";
	if (disk()) drawChange(disk());
	say("locked");
}

// --- Slow requests ---------------------------------------------------------------------------

async function fetchSlow() {
	const one = by("slow-one").checked && view.disk ? `&disk=${encodeURIComponent(view.disk)}` : "";
	const { requests } = await get(`/api/slow?over_ms=${by("slow-over").value}${one}`);
	const last = requests.slice(-100).reverse();
	const now = Date.now() / 1000;
	const key = JSON.stringify(last.map((r) => [r.disk, r.offset_bytes, r.response_ms]));
	by("slow-none").hidden = last.length > 0;
	by("slow-scroll").hidden = last.length === 0;
	const body = by("slow-table").tBodies[0];
	if (body.dataset.key === key) return;
	body.dataset.key = key;
	body.replaceChildren(...last.map((request) => slowRow(request, now)));
}

// --- All together ----------------------------------------------------------------------------

function draw() {
	if (!store.status || document.hidden) return;
	settle();
	const { report } = store.status;
	const all = devices().reduce((sum, d) => sum + d.disks.length, 0);
	setText(by("about"), `version ${report.version}, process ${report.process}, up ${lasting(report.uptime_s)}, ${all} ${all === 1 ? "disk" : "disks"}`);
	drawNotice(report);
	drawDevices();
	drawDevice();
	const seen = store.view(view.range);
	chooseColoured(seen.samples);
	const shown = colouredDisks();
	drawDisks();
	drawDisk();
	const names = (device()?.disks ?? []).map((d) => d.name).sort(naturally);
	const model = {
		view: seen,
		device: view.device,
		disk: view.disk,
		disks: names,
		shown,
		rest: Math.max(0, names.length - shown.length),
		heatOf: view.disk ?? "",
	};
	if (seen.samples.length === 0) return;
	for (const chart of drawn) {
		if (chart.id === "chart-responses") setText(chart.heading, `Response times of ${view.disk ?? "all disks"}`);
		if (chart.id === "chart-cache") {
			setText(chart.heading, `Cache and read-ahead of ${view.disk ?? "the disk"}`);
			chart.figure.hidden = !disk()?.cache;
		}
		if (!chart.figure.hidden) chart.update(model);
	}
}

function drawNotice(report) {
	const lines = [
		...(report.silent ?? []).map((name) => `Device ${name} does not answer: its disk may hang.`),
		...(report.failed ?? []).map((failed) => `Disk ${failed.name} is NOT SERVED${failed.retried ? " yet" : ""}: ${failed.error}`),
	];
	setText(by("notice"), lines.join("\n"));
	by("notice").hidden = lines.length === 0;
}

let isAsking = false;

async function poll() {
	if (view.isPaused || document.hidden || isAsking) return;
	isAsking = true;
	try {
		const isOther = store.take(await get("/api/status"));
		settle();
		await store.follow(view.range === "whole", view.disk);
		if (isOther) say("another daemon answers now; its history begins anew");
		setState("live", "live");
		polls += 1;
		draw();
		if (polls % SLOW_EVERY === 1) await fetchSlow();
	} catch (error) {
		if (error instanceof Gone) setState("gone", "the daemon does not answer; trying again");
		else {
			setState("gone", error.message);
			console.error(error);
		}
	} finally {
		isAsking = false;
	}
}

/** Something else is wanted: not only in a second. */
function refetch() {
	by("slow-table").tBodies[0].dataset.key = "";
	polls -= polls % SLOW_EVERY;
	poll();
}

function begin() {
	makeHead();
	drawn = charts();
	for (const chart of drawn) {
		chart.say = say;
		by("charts").append(chart.figure);
	}
	by("disk-table").addEventListener("keydown", keyInDisks);
	by("filter").addEventListener("input", () => {
		view.filter = by("filter").value.trim().toLowerCase();
		drawDisks();
	});
	for (const input of document.querySelectorAll("input[name=range]")) {
		input.addEventListener("change", () => {
			view.range = input.value === "whole" ? "whole" : Number(input.value);
			store.wholeAt = 0;
			draw();
			refetch();
		});
	}
	by("pause").addEventListener("click", () => {
		view.isPaused = !view.isPaused;
		by("pause").setAttribute("aria-pressed", String(view.isPaused));
		if (view.isPaused) setState("wait", "paused");
		else poll();
	});
	for (const id of ["slow-over", "slow-one"]) by(id).addEventListener("change", () => refetch());
	beginTheme();
	new ResizeObserver(() => drawn.forEach((chart) => chart.resize())).observe(by("charts"));
	document.addEventListener("visibilitychange", poll);
	setInterval(poll, PERIOD_MS);
	poll();
}

function beginTheme() {
	const choice = by("theme");
	const apply = () => {
		if (choice.value) document.documentElement.dataset.theme = choice.value;
		else delete document.documentElement.dataset.theme;
		drawn.forEach((chart) => chart.renew());
		draw();
	};
	choice.value = localStorage.getItem("seekway-theme") ?? "";
	choice.addEventListener("change", () => {
		localStorage.setItem("seekway-theme", choice.value);
		apply();
	});
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
	apply();
}

begin();
