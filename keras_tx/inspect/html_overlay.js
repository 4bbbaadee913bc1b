// The interactive figure of html_overlay.py: builds its DOM beside the data that it is the next script of.
(async () => {
    'use strict';
    const root = document.currentScript.parentElement;
    const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const { rows, columns, layers, heads, queries } = data;
    const patches = rows * columns;
    const first = data.has_class_token ? 'the class token' : 'all patches, on average';
    const MASS = 0.6; // of the attention, that the mask keeps, as in DINO's figures
    const state = { layer: layers - 1, head: null, query: 0, smooth: false, masked: false, hovered: null };

    const percent = (value) => `${(100 * value).toPrecision(value >= 0.1 ? 3 : 2)} %`;
    const place = (patch) => `row ${Math.floor(patch / columns)}, column ${patch % columns}`;

    function element(name, properties = {}, ...children) {
        const made = Object.assign(document.createElement(name), properties);
        made.append(...children);
        return made;
    }

    async function unpack(text) {
        const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
        const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
        return new Response(stream).arrayBuffer();
    }

    async function pixels(address) {
        const image = element('img', { src: address });
        await image.decode();
        const context = element('canvas', { width: image.naturalWidth, height: image.naturalHeight }).getContext('2d');
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, image.naturalWidth, image.naturalHeight);
    }

    const bytes = new Uint8Array(await unpack(data.bytes));
    const largest = new Float32Array(await unpack(data.largest));
    const sums = new Float32Array(await unpack(data.sums));
    const photograph = await pixels(data.photograph);
    const details = await pixels(data.details);
    const { width, height } = photograph;

    // The weights of one layer and head; head null is the mean over heads.
    function weights(layer, head, query) {
        const values = new Float32Array(patches);
        const chosen = head === null ? [...Array(heads).keys()] : [head];
        for (const one of chosen) {
            const row = (layer * heads + one) * queries + query;
            const scale = largest[row] / 255 / chosen.length;
            for (let i = 0; i < patches; i++) values[i] += bytes[row * patches + i] * scale;
        }
        return values;
    }

    function sum(layer, head, query) {
        const chosen = head === null ? [...Array(heads).keys()] : [head];
        return chosen.reduce((total, one) => total + sums[(layer * heads + one) * queries + query], 0) / chosen.length;
    }

    // The fewest patches that hold this share of the sum.
    function mask(values) {
        const order = [...values.keys()].sort((a, b) => values[b] - values[a]);
        const total = values.reduce((a, b) => a + b, 0);
        const selected = new Uint8Array(patches);
        let mass = 0;
        for (const patch of order) {
            if (mass >= MASS * total) break;
            selected[patch] = 1;
            mass += values[patch];
        }
        return selected;
    }

    // For each pixel of an axis: the two patches around it, and the share of the second.
    function interpolation(size, count, share) {
        const covered = Math.max(1, Math.round(size * share));
        return Array.from({ length: size }, (_, i) => {
            if (i >= covered) return null;
            const at = Math.min(Math.max((i + 0.5) * count / covered - 0.5, 0), count - 1);
            if (!state.smooth) return [Math.floor((i + 0.5) * count / covered), 0, 0];
            const first = Math.min(Math.floor(at), count - 1);
            return [first, Math.min(first + 1, count - 1), at - first];
        });
    }

    function drawMap(values, most) {
        const image = new ImageData(width, height);
        const across = interpolation(width, columns, data.covered[1]);
        const down = interpolation(height, rows, data.covered[0]);
        for (let y = 0, p = 0; y < height; y++) {
            for (let x = 0; x < width; x++, p += 4) {
                const inside = down[y] && across[x];
                const [top, bottom, v] = inside ? down[y] : [0, 0, 0];
                const [left, right, u] = inside ? across[x] : [0, 0, 0];
                const upper = values[top * columns + left] * (1 - u) + values[top * columns + right] * u;
                const lower = values[bottom * columns + left] * (1 - u) + values[bottom * columns + right] * u;
                const color = data.palette[inside ? Math.round(255 * (upper * (1 - v) + lower * v) / most) : 0];
                const detail = details.data[p] - data.middle;
                for (let c = 0; c < 3; c++) image.data[p + c] = data.color * color[c] + detail;
                image.data[p + 3] = 255;
            }
        }
        return image;
    }

    function drawMask(selected) {
        const image = new ImageData(new Uint8ClampedArray(photograph.data), width, height);
        const across = interpolation(width, columns, data.covered[1]);
        const down = interpolation(height, rows, data.covered[0]);
        for (let y = 0, p = 0; y < height; y++) {
            for (let x = 0; x < width; x++, p += 4) {
                if (down[y] && across[x] && selected[down[y][0] * columns + across[x][0]]) continue;
                const [r, g, b] = image.data.subarray(p, p + 3);
                image.data.fill(255 - 0.25 * (255 - (0.299 * r + 0.587 * g + 0.114 * b)), p, p + 3);
            }
        }
        return image;
    }

    function drawThumbnail(canvas, layer, head) {
        const values = weights(layer, head, state.query);
        const most = Math.max(...values) || 1;
        const image = new ImageData(columns, rows);
        values.forEach((value, patch) => image.data.set([...data.palette[Math.round(255 * value / most)], 255], 4 * patch));
        canvas.getContext('2d').putImageData(image, 0, 0);
    }

    const canvas = element('canvas', { width, height, tabIndex: 0 });
    const context = canvas.getContext('2d');
    const chosenCell = element('div', { className: 'cell' });
    const hoveredCell = element('div', { className: 'cell hovered' });
    const title = element('div');
    const readout = element('div', { className: 'readout' });
    const most = element('span');
    const reset = element('button', { type: 'button', textContent: data.has_class_token ? 'Class token' : 'All patches' });
    const thumbnails = [];

    function showCell(cell, patch) {
        cell.hidden = patch === null;
        if (patch === null) return;
        const [row, column] = [Math.floor(patch / columns), patch % columns];
        Object.assign(cell.style, {
            left: `${100 * data.covered[1] * column / columns}%`, top: `${100 * data.covered[0] * row / rows}%`,
            width: `${100 * data.covered[1] / columns}%`, height: `${100 * data.covered[0] / rows}%`,
        });
    }

    let values = null;
    function showReadout() {
        const on = sum(state.layer, state.head, state.query);
        let text = `${percent(on)} of the attention is on patches`;
        if (on < 0.9995) text += `, the rest on the ${data.others}`;
        if (state.hovered !== null) {
            const value = values[state.hovered];
            text = `${place(state.hovered)}: ${percent(value)}, ${(value * patches / (on || 1)).toPrecision(2)} times the mean of the patches`;
        }
        readout.textContent = `${text}.`;
        showCell(hoveredCell, state.hovered);
    }

    function show() {
        const { layer, head, query } = state;
        values = weights(layer, head, query);
        const highest = Math.max(...values);
        context.putImageData(state.masked ? drawMask(mask(values)) : drawMap(values, highest || 1), 0, 0);
        const from = query ? `the patch in ${place(query - 1)}` : first;
        const which = head === null ? 'mean of the heads' : `head ${head}`;
        title.textContent = state.masked
            ? `Layer ${layer}, ${which}: the ${mask(values).reduce((a, b) => a + b)} of ${patches} patches that hold ${100 * MASS} % of the attention of ${from} to patches.`
            : `Layer ${layer}, ${which}: attention of ${from}.`;
        canvas.setAttribute('aria-label', title.textContent);
        most.textContent = percent(highest);
        reset.disabled = query === 0;
        showCell(chosenCell, query ? query - 1 : null);
        for (const one of thumbnails) one.button.classList.toggle('chosen', one.layer === layer && one.head === head);
        showReadout();
    }

    function choose(query) {
        if (query >= queries) return;
        state.query = query;
        for (const one of thumbnails) drawThumbnail(one.canvas, one.layer, one.head);
        show();
    }

    function patchAt(event) {
        const box = canvas.getBoundingClientRect();
        const column = Math.floor(columns * (event.clientX - box.left) / box.width / data.covered[1]);
        const row = Math.floor(rows * (event.clientY - box.top) / box.height / data.covered[0]);
        return row >= 0 && row < rows && column >= 0 && column < columns ? row * columns + column : null;
    }

    function checkbox(text, name) {
        const input = element('input', { type: 'checkbox', onchange: () => { state[name] = input.checked; show(); } });
        return element('label', {}, input, text);
    }

    function cell(layer, head) {
        const side = Math.min(78, Math.max(24, 385 / (heads + 1) - 2)); // beside the image in a window of 1,300 pixels
        const small = element('canvas', { width: columns, height: rows });
        const longer = Math.max(width, height);
        Object.assign(small.style, { width: `${side * width / longer}px`, height: `${side * height / longer}px` });
        const name = `layer ${layer}, ${head === null ? 'mean of the heads' : `head ${head}`}`;
        const button = element('button', {
            type: 'button', title: name, ariaLabel: name,
            onclick: () => { Object.assign(state, { layer, head }); show(); },
        }, small);
        thumbnails.push({ canvas: small, button, layer, head });
        return element('td', { className: head === null && heads > 1 ? 'mean' : '' }, button);
    }

    const shown = [...Array(heads).keys(), ...(heads > 1 ? [null] : [])];
    if (heads === 1) state.head = 0;
    const table = element('table', {},
        element('tr', {}, element('th', { textContent: heads > 6 ? 'head' : '' }), ...shown.map((head) => element('th', { scope: 'col', textContent: head === null ? 'mean' : `head ${head}` }))),
        ...Array.from({ length: layers }, (_, layer) => element('tr', {},
            element('th', { scope: 'row', textContent: `layer ${layer}` }), ...shown.map((head) => cell(layer, head)))));
    if (heads > 6) table.querySelectorAll('tr:first-child th').forEach((one, i) => { if (i && i <= heads) one.textContent = i - 1; });

    canvas.addEventListener('pointermove', (event) => { state.hovered = patchAt(event); showReadout(); });
    canvas.addEventListener('pointerleave', () => { state.hovered = null; showReadout(); });
    canvas.addEventListener('click', (event) => { const patch = patchAt(event); if (patch !== null) choose(patch + 1); });
    canvas.addEventListener('keydown', (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
        if (event.key === 'Escape') choose(0);
        if (step === undefined || queries === 1) return;
        event.preventDefault();
        const next = state.query ? state.query - 1 + step : Math.floor(rows / 2) * columns + Math.floor(columns / 2);
        if (next >= 0 && next < patches) choose(next + 1);
    });
    reset.addEventListener('click', () => choose(0));

    const gradient = data.palette.filter((_, i) => i % 15 === 0).map((color) => `rgb(${color})`);
    root.append(element('div', { className: 'body' },
        element('figure', {},
            element('div', { className: 'image' }, canvas, chosenCell, hoveredCell),
            element('figcaption', {}, title, readout),
            element('div', { className: 'scale' }, '0',
                element('i', { style: `background: linear-gradient(to right, ${gradient})` }), most),
            element('div', { className: 'controls' },
                ...(queries > 1 ? [reset] : []), checkbox('Smooth', 'smooth'), checkbox(`Patches with ${100 * MASS} % of the attention`, 'masked'))),
        element('div', {},
            element('p', { className: 'help', textContent: queries > 1
                ? 'Click a map to enlarge it. Click a patch of the image to see its attention; the arrow keys select another patch.'
                : 'Click a map to enlarge it. Each map has its own color scale, from 0 to its largest weight.' }),
            element('div', { className: 'table' }, table))));
    choose(0);
    root.dataset.ready = 'true';
})();
