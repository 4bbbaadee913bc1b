// What transformers.js is asked about a folder, in Node and in a browser alike, and how far its answers are
// from those of our runtime.

const AT_PADDING = -10000; // what a graph gives there for the beginning and end of an answer

export class Comparison {
    gap = 0;

    // Notes the largest difference, relative to the scale of what is expected, as in tests/tolerances.py.
    close(name, got, expected) {
        const numbers = [got, expected].map((x) => Array.from(x.data ?? [x].flat(Infinity), Number));
        const [ours, theirs] = [numbers[1], numbers[0]];
        if (ours.length !== theirs.length) throw Error(`${name} has ${theirs.length} numbers, expected ${ours.length}`);
        let gap = 0;
        let scale = 0;
        ours.forEach((x, i) => {
            if (x === AT_PADDING && theirs[i] === x) return;
            gap = Math.max(gap, Number.isFinite(theirs[i]) ? Math.abs(theirs[i] - x) : Infinity);
            scale = Math.max(scale, Math.abs(x));
        });
        this.gap = Math.max(this.gap, gap / scale);
    }

    same(name, got, expected) {
        const [ours, theirs] = [expected, got].map((x) => JSON.stringify(x));
        if (ours !== theirs) throw Error(`${name} is ${theirs}, expected ${ours}`);
    }

    // Numbers close and all else the same, at any depth; of texts what is ASCII: half a character is written in
    // more than one way.
    similar(name, got, expected) {
        if (typeof expected === 'number') this.close(name, got, expected);
        else if (typeof expected === 'string') this.same(name, ...[got, expected].map((x) => x.replace(/[^\0-\x7f]/g, '')));
        else {
            this.same(`${name}: keys`, Object.keys(got).sort(), Object.keys(expected).sort());
            for (const [key, value] of Object.entries(expected)) this.similar(`${name}: ${key}`, got[key], value);
        }
    }

    scores(name, got, expected, label = 'label') {
        this.same(`${name}: labels`, got.map((x) => x[label]), expected.map((x) => x.label));
        this.close(`${name}: scores`, got.map((x) => x.score), expected.map((x) => x.score));
    }
}

const lists = (tensor) => tensor.tolist().map((row) => row.map(Number));

// read(picture) gives a RawImage.
async function pictures(model, one, comparison, read) {
    const images = await Promise.all(one.pictures.map(read));
    const outputs = await model.model(await model.processor(images));
    comparison.close(one.output, outputs[one.output], one.values);
    if (one.precision !== 'fp32') return; // pipelines were asked about that, and may ask in other batches
    if (one.task === 'image-classification') {
        const answers = await model(images, { top_k: one.labels.length });
        answers.forEach((got, i) => comparison.scores('pipeline', got, one.scores[i]));
    } else {
        comparison.close('pipeline', await model(images), one.values);
    }
}

async function texts(model, one, comparison) {
    const inputs = model.tokenizer(one.texts, { text_pair: one.pairs, padding: true });
    const batch = Object.fromEntries(Object.keys(one.batch).map((name) => [name, inputs[name] && lists(inputs[name])]));
    comparison.same('batch', batch, one.batch);
    const outputs = await model.model(inputs);
    for (const [name, expected] of Object.entries(one.outputs)) comparison.close(name, outputs[name], expected);
    if (one.precision === 'fp32' && one.task !== null) await pipelines[pipelineOf(one)](model, one, comparison);
}

const pipelines = {
    // It takes no pairs, and makes a softmax of a single number, too.
    'text-classification': async (model, one, comparison) => {
        if (one.pairs !== null) return;
        const answers = await model(one.texts, { top_k: 9 });
        answers.forEach((got, i) => comparison.scores('pipeline', got, one.answers[i]));
    },
    // It leaves out unknown tokens, as if they were special ones.
    'token-classification': async (model, one, comparison) => {
        const answers = await model(one.texts, { ignore_labels: [] });
        answers.forEach((got, i) => {
            comparison.scores('pipeline', got, one.answers[i].filter((x) => !x.unknown), 'entity');
        });
    },
    // It knows no missing answer and no longest one, and leaves out unknown tokens: asked where that is the same.
    'question-answering': async (model, one, comparison) => {
        for (const [i, expected] of one.answers.entries()) {
            const got = await model(one.texts[i], one.pairs[i]);
            if (!one.plain[i]) continue;
            comparison.same('pipeline: answer', squeezed(got.answer), squeezed(expected.answer));
            comparison.close('pipeline: score', got.score, expected.score);
        }
    },
    'fill-mask': async (model, one, comparison) => {
        const answers = await model(one.texts, { top_k: 3 });
        answers.forEach((got, i) => {
            const expected = one.answers[i];
            comparison.same('pipeline: ids', got.map((x) => x.token), expected.map((x) => x.id));
            comparison.close('pipeline: scores', got.map((x) => x.score), expected.map((x) => x.score));
        });
    },
    'feature-extraction': async (model, one, comparison) => {
        if (one.pooling === null) return;
        const pooling = one.pooling === 'class' ? 'cls' : one.pooling;
        const vectors = await model(one.texts, { pooling, normalize: one.normalize });
        comparison.close('pipeline', vectors, one.answers);
    },
};

// Decoded from tokens, without the spaces, capitals and accents of the text.
const squeezed = (text) => text.toLowerCase().normalize('NFKD').replace(/##|[\s\u0300-\u036f]/g, '');

async function decoders(model, one, comparison, read, { Tensor }) {
    const options = { max_new_tokens: one.new_tokens, do_sample: false };
    const tensor = (numbers) => new Tensor('int64', BigInt64Array.from(numbers, BigInt), [1, numbers.length]);
    for (const [i, ids] of one.ids.entries()) {
        const inputs = { input_ids: tensor(ids), attention_mask: tensor(ids.map(() => 1)) };
        if (i === 0) comparison.close('logits', (await model.model(inputs)).logits, one.logits);
        const made = lists(await model.model.generate({ ...inputs, ...options }))[0];
        if (one.new_ids) comparison.same('tokens', made.slice(ids.length), one.new_ids[i]);
    }
    if (one.prompts === null) return;
    comparison.same('ids', one.prompts.map((prompt) => model.tokenizer.encode(prompt)), one.ids);
    if (!one.together) return;
    const batch = model.tokenizer(one.prompts, { padding: true });
    comparison.same('padding', lists(batch.attention_mask)[0][0], 0);
    const rows = lists(await model.model.generate({ ...batch, ...options }));
    rows.forEach((row, i) => {
        const made = row.slice(batch.input_ids.dims[1]);
        comparison.same('tokens of a batch', made.slice(0, one.new_ids[i].length), one.new_ids[i]);
    });
    const answers = await model(one.prompts, { ...options, return_full_text: false });
    // It writes bytes that are no character in another way, and may keep a first space.
    const plain = (text) => (one.byte_fallback ? text.replace(/^ /, '') : text);
    const decoded = one.byte_fallback ? model.tokenizer.batch_decode(one.new_ids, { skip_special_tokens: true }) : one.new_texts;
    const texts = decoded.map(plain);
    // After the end of a text it goes on until all texts of a batch end.
    const begins = (answer, i) => plain(answer[0].generated_text).slice(0, texts[i].length);
    comparison.same('pipeline', answers.map(begins), texts);
}

async function encoder_decoders(model, one, comparison, read, { Tensor, pipeline }, settings) {
    const options = { max_new_tokens: one.new_tokens, do_sample: false };
    const tensor = (rows) => new Tensor('int64', BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
    // Behind the end of a target it goes on until all of a batch end.
    const cut = (rows) => rows.map((row, i) => row.slice(1, 1 + one.new_ids[i].length));
    for (const [i, ids] of one.ids.entries()) {
        const inputs = { input_ids: tensor([ids]), attention_mask: tensor([ids.map(() => 1)]) };
        if (i === 0) {
            const outputs = await model.model({ ...inputs, decoder_input_ids: tensor([[one.start_id]]) });
            comparison.close('logits', outputs.logits, one.logits);
        }
        const made = lists(await model.model.generate({ ...inputs, ...options }))[0];
        if (one.new_ids) comparison.same('tokens', made.slice(1), one.new_ids[i]);
    }
    comparison.same('ids', one.texts.map((text) => model.tokenizer.encode(text)), one.ids);
    if (!one.together || !one.new_ids) return;
    const batch = model.tokenizer(one.texts, { padding: true });
    comparison.same('padding', lists(batch.attention_mask)[2].at(-1), 0);
    comparison.same('tokens of a batch', cut(lists(await model.model.generate({ ...batch, ...options }))), one.new_ids);
    const tasks = { 'text2text-generation': 'generated_text', translation: 'translation_text', summarization: 'summary_text' };
    for (const [task, key] of Object.entries(tasks)) {
        const ask = await pipeline(task, one.folder, settings);
        for (const [i, text] of one.texts.entries()) {
            const [answer] = await ask(text, options);
            comparison.same(`pipeline: ${task}`, answer[key], one.new_texts[i]);
        }
        await ask.dispose();
    }
}

// A model without a task opens as one that gives features does. So does a model of masked tokens and next
// sentences: the fill-mask pipeline reads `logits`, where it has `prediction_logits`.
function pipelineOf(one) {
    return one.task === null || 'prediction_logits' in (one.outputs ?? {}) ? 'feature-extraction' : one.task;
}

const kinds = { pictures, texts, decoders, encoder_decoders };

// Where a data file beside the graph fails to load, transformers.js rejects a promise that nothing awaits,
// and its pipeline never comes back: `stopped` is a promise that such a rejection rejects.
export async function ask(transformers, one, options, read, stopped) {
    const comparison = new Comparison();
    await Promise.race([stopped, (async () => {
        const model = await transformers.pipeline(pipelineOf(one), one.folder, options);
        await kinds[one.kind](model, one, comparison, read, transformers, options);
        await model.dispose();
    })()]);
    return comparison.gap;
}

// Where transformers.js looks for the file of a precision.
export const DTYPES = {
    fp32: 'fp32', fp16: 'fp16', int8: 'q8', 'int8-blocks': 'int8', 'int8-dynamic': 'int8', int4: 'q4',
};

// Throws an error unless the client refuses a folder with the error that the page names.
export async function refused(attempt, expected) {
    try {
        await attempt();
    } catch (error) {
        if (!String(error).includes(expected)) throw error;
        return 0;
    }
    throw Error('clients.md says that it does not run this folder, but it does');
}

// Asks about every file, and whatever else is to be tried; gives one line and what is wrong. What these clients
// compute with is not the onnxruntime of our runtime, so it may round elsewhere.
export async function askAll(client, reference, askOne, others = {}) {
    const gaps = new Map();
    const limitOf = (name) => reference.cases[name]?.rounded ?? reference.tolerance;
    const wrong = [];
    const name = client.split(' ')[0];
    const cases = Object.entries(reference.cases).map(([folder, one]) => (
        [folder, () => {
            const expected = one.refused_by?.[name];
            return expected ? refused(() => askOne(one), expected) : askOne(one);
        }]
    ));
    for (const [name, attempt] of [...cases, ...Object.entries(others)]) {
        try {
            const gap = await attempt();
            gaps.set(name, gap);
            const limit = limitOf(name);
            if (!(gap <= limit)) wrong.push(`${name}: differs by ${gap.toExponential(1)} of the scale`);
        } catch (error) { // whatever it throws is its refusal; the other folders are still tried
            wrong.push(`${name}: ${String(error).slice(0, 700)}`);
        }
    }
    const limits = [...new Set([...gaps.keys()].map(limitOf))].sort((a, b) => a - b);
    const worst = limits.map((limit) => {
        const [name, gap] = [...gaps].filter(([one]) => limitOf(one) === limit).reduce((a, b) => (b[1] > a[1] ? b : a));
        return `${gap.toExponential(1)} (${name}), tolerance ${limit.toExponential(0)}`;
    });
    const what = [`${cases.length} files`, Object.keys(others).length ? 'the lines of clients.md' : []].flat().join(' and ');
    const said = `${what}; the largest differences ${worst.join('; ')}`;
    return { text: [`${client}: ${wrong.length ? 'FAILED' : 'ok'}: ${said}`, ...wrong].join('\n    '), wrong };
}
