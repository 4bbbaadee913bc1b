// transformers.js in a page of headless Chromium, served by `python -m http.server`, and the page of
// examples/browser. PLACE has what package.json names, page.html, example/ and folders/:
//     node run_browser.mjs PLACE PYTHON CHROMIUM

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { chromium } from 'playwright-core';
import { Comparison } from './asking.mjs';

const [place, python, executablePath] = process.argv.slice(2);
process.chdir(place);
const reference = JSON.parse(readFileSync('folders/reference.json', 'utf-8'));

async function serve() {
    const options = ['-u', '-m', 'http.server', '0', '--bind', '127.0.0.1'];
    const server = spawn(python, options, { stdio: ['ignore', 'pipe', 'inherit'] });
    const port = await new Promise((resolve, reject) => {
        server.once('exit', (code) => reject(Error(`the server ended with ${code}`)));
        let said = '';
        server.stdout.on('data', (more) => {
            said += more;
            const port = /port (\d+)/.exec(said);
            if (port) resolve(port[1]);
        });
    });
    return { server, base: `http://127.0.0.1:${port}` };
}

// Whether the page of examples/browser says of a photograph what our runtime says.
async function tryExample(page, base) {
    const one = reference.cases.square;
    await page.goto(`${base}/example/index.html`);
    await page.waitForFunction(() => document.getElementById('status').textContent.startsWith('Choose'));
    const comparison = new Comparison();
    for (const [i, picture] of one.pictures.entries()) {
        await page.setInputFiles('#photograph', path.join('folders', picture));
        await page.waitForFunction(() => document.getElementById('status').textContent.endsWith('ms'));
        const rows = await page.$$eval('#answers tr', (all) => all.map((row) => (
            { label: row.cells[0].textContent, score: Number(row.dataset.score) }
        )));
        comparison.scores(picture, rows, one.scores[i]);
        await page.evaluate(() => { document.getElementById('status').textContent = ''; });
    }
    if (!(comparison.gap <= reference.tolerance)) throw Error(`examples/browser: a score differs by ${comparison.gap}`);
    return comparison.gap;
}

const FLAGS = ['no-sandbox', 'disable-quic', 'no-first-run', 'disable-background-networking', 'disable-component-update',
    'disable-sync'];

function start(profile, ...flags) {
    const args = [...FLAGS, ...flags].map((flag) => `--${flag}`);
    return chromium.launchPersistentContext(profile, { executablePath, headless: true, args });
}

// Folders for WebGPU, on Chromium's software adapter: the same answers, and the predicted nodes on the CPU.
async function tryWebGpu(base) {
    const place = mkdtempSync(path.join(tmpdir(), 'chromium-'));
    const context = await start(place, 'enable-unsafe-webgpu');
    try {
        const page = await context.newPage();
        const placed = {};
        let provider;
        let counts;
        page.on('console', (message) => {
            for (const line of message.text().split('\n')) {
                const folder = /^folder (\S+)/.exec(line)?.[1];
                if (folder) counts = placed[folder] = {};
                provider = /placed on \[(\w+)\]/.exec(line)?.[1] ?? provider;
                const node = /VerifyEachNodeIsAssignedToAnEp\]   ([\w.]+) \((.*)\)/.exec(line);
                if (node) (counts[provider] ??= []).push([node[1], node[2]]);
            }
        });
        page.setDefaultTimeout(1_200_000);
        await page.goto(`${base}/page.html?device=webgpu`);
        const text = await page.locator('#answer:not(:empty)').textContent();
        console.log(text);
        if (text.includes('FAILED')) process.exitCode = 1;
        for (const [name, one] of Object.entries(reference.cases).filter(([, x]) => x.target === 'webgpu')) {
            // onnxruntime adds a Gather where it moves a Transpose behind a Shape.
            const fallen = (placed[name].CPUExecutionProvider ?? [])
                .filter(([operator, node]) => !one.sizes.includes(node) && node !== operator)
                .map(([operator]) => operator);
            const predicted = Object.entries(one.on_cpu).flatMap(([operator, count]) => Array(count).fill(operator));
            const onGpu = placed[name].WebGpuExecutionProvider?.length ?? 0;
            if (onGpu < 20 || String(fallen.sort()) !== String(predicted.sort())) {
                throw Error(`${name}: ${onGpu} nodes on WebGPU; on the CPU ${fallen}, predicted ${predicted}`);
            }
        }
        console.log('WebGPU: the nodes on the CPU are as predicted');
    } finally {
        await context.close();
        rmSync(place, { recursive: true, force: true });
    }
}

const profile = mkdtempSync(path.join(tmpdir(), 'chromium-'));
const { server, base } = await serve();
let browser;
try {
    await tryWebGpu(base);
    browser = await start(profile, 'disable-gpu');
    const page = await browser.newPage();
    page.on('console', (message) => console.error(message.text()));
    page.on('pageerror', (error) => console.error(String(error)));
    page.setDefaultTimeout(1_200_000);
    await page.goto(`${base}/page.html`);
    const answer = page.locator('#answer:not(:empty)');
    const text = await answer.textContent();
    console.log(text);
    if (text.includes('FAILED')) process.exitCode = 1;
    const gap = await tryExample(page, base);
    console.log(`examples/browser, Chromium ${browser.browser()?.version() ?? ''}: ok: ${gap.toExponential(1)}`);
} catch (error) {
    console.log(`a page in Chromium: FAILED: ${String(error).slice(0, 700)}`);
    process.exitCode = 1;
} finally {
    await browser?.close();
    server.kill();
    rmSync(profile, { recursive: true, force: true });
}
