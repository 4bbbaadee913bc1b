// transformers.js in Node: its pipelines open the folder, and read pictures and texts by themselves.
// Beside this file are node_modules with what package.json names, and clients.md: node run_transformers_js.mjs OUT

import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import * as transformers from '@huggingface/transformers';
import { ask, askAll, DTYPES, Comparison } from './asking.mjs';

const { env, RawImage } = transformers;
const out = path.resolve(process.argv[2]);
env.allowRemoteModels = false;
env.localModelPath = out;

async function askOne(one) {
    let reject;
    const stopped = new Promise((_, no) => { reject = no; });
    process.once('unhandledRejection', reject);
    try {
        // Node takes onnx/model.onnx by default.
        const options = one.precision === 'fp32' ? {} : { dtype: DTYPES[one.precision] };
        return await ask(transformers, one, options, (picture) => RawImage.read(path.join(out, picture)), stopped);
    } finally {
        process.off('unhandledRejection', reject);
    }
}

const reference = JSON.parse(readFileSync(path.join(out, 'reference.json'), 'utf-8'));

// The lines of the page, run where their folders are; the last of each block gives the answer.
const here = path.dirname(fileURLToPath(import.meta.url));
const page = readFileSync(path.join(here, 'clients.md'), 'utf-8');
const blocks = [...page.matchAll(/```js\n(.*?)```/gs)].map(([, block]) => block);
const answers = reference.documented['transformers.js'];
if (blocks.length !== answers.length) throw Error(`clients.md has ${blocks.length} blocks, expected ${answers.length}`);
const others = Object.fromEntries(blocks.map((block, i) => [`clients.md, block ${i + 1}`, async () => {
    const file = path.join(here, `block_${i}.mjs`);
    writeFileSync(file, block.trimEnd().replace(/\n(?=[^\n]*$)/, '\nexport default '));
    process.chdir(path.join(out, 'documented'));
    const comparison = new Comparison();
    comparison.similar('it', (await import(file)).default, answers[i]);
    return comparison.gap;
}]));

const { text, wrong } = await askAll(`transformers.js ${env.version} (Node)`, reference, askOne, others);
console.log(text);
process.exitCode = wrong.length ? 1 : 0;
