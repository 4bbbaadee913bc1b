// transformers.js in Node: its pipelines open the folder, and read the pictures by themselves.
// Run from a folder whose node_modules has what package.json names: node run_transformers_js.mjs OUT

import { readFileSync } from 'node:fs';
import path from 'node:path';
import { env, pipeline, RawImage } from '@huggingface/transformers';

const out = path.resolve(process.argv[2]);
env.allowRemoteModels = false;
env.localModelPath = out;

// The largest difference, relative to the scale of what is expected, as in tests/tolerances.py.
function difference(got, expected) {
    if (got.length !== expected.length) throw Error(`${got.length} numbers, expected ${expected.length}`);
    let gap = 0;
    let scale = 0;
    for (let i = 0; i < expected.length; i++) {
        gap = Math.max(gap, Number.isFinite(got[i]) ? Math.abs(got[i] - expected[i]) : Infinity);
        scale = Math.max(scale, Math.abs(expected[i]));
    }
    return gap / scale;
}

async function gapOf(name, one) {
    // Node takes onnx/model.onnx by default; a browser would take model_quantized.onnx, unless told dtype: 'fp32'.
    const model = await pipeline(one.task, name);
    const pictures = await Promise.all(one.pictures.map((picture) => RawImage.read(path.join(out, picture))));
    const inputs = await model.processor(pictures);
    const outputs = await model.model(inputs);
    let gap = difference(outputs[one.output].data, one.values.flat(Infinity));
    if (one.task === 'image-classification') {
        const answers = await model(pictures, { top_k: one.labels.length });
        answers.forEach((got, index) => {
            const expected = one.scores[index];
            const labels = (entries) => entries.map((entry) => entry.label).join(' | ');
            if (labels(got) !== labels(expected)) throw Error(`labels ${labels(got)}, expected ${labels(expected)}`);
            got.forEach((entry, rank) => { gap = Math.max(gap, Math.abs(entry.score - expected[rank].score)); });
        });
    } else {
        const features = await model(pictures);
        gap = Math.max(gap, difference(features.data, one.values.flat(Infinity)));
    }
    await model.dispose();
    return gap;
}

// Where a data file beside the graph fails to load, transformers.js rejects a promise that nothing awaits,
// and its pipeline never comes back: that rejection, too, is the answer.
function settled(promise) {
    return new Promise((resolve, reject) => {
        process.once('unhandledRejection', reject);
        promise.then(resolve, reject).finally(() => process.off('unhandledRejection', reject));
    });
}

const reference = JSON.parse(readFileSync(path.join(out, 'reference.json'), 'utf-8'));
const found = [];
const wrong = [];
for (const [name, one] of Object.entries(reference.cases)) {
    try {
        const gap = await settled(gapOf(name, one));
        found.push(`${name} ${gap.toExponential(1)}`);
        if (!(gap <= reference.tolerance)) wrong.push(`${name}: differs by ${gap.toExponential(1)} of the scale`);
    } catch (error) { // whatever it throws is its refusal; the other folders are still tried
        wrong.push(`${name}: ${String(error).slice(0, 500)}`);
    }
}
const verdict = wrong.length ? 'FAILED' : 'ok';
const limit = `(tolerance ${reference.tolerance.toExponential(0)})`;
console.log([`transformers.js ${env.version}: ${verdict}: ${found.join(', ')} ${limit}`, ...wrong].join('\n    '));
process.exitCode = wrong.length ? 1 : 0;
