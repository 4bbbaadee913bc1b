// Classifies a photograph in the browser, with the folder of export_onnx beside this file, model/.

import { env, pipeline, RawImage } from './node_modules/@huggingface/transformers/dist/transformers.min.js';

// The server of this page also serves the folder, and onnxruntime as WebAssembly.
env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = './';
env.useBrowserCache = false; // otherwise the browser may use an earlier folder
env.backends.onnx.wasm.wasmPaths = new URL('node_modules/onnxruntime-web/dist/', import.meta.url).href;

const [photograph, shown, status, answers] = ['photograph', 'shown', 'status', 'answers'].map(
    (id) => document.getElementById(id),
);

try {
    const classify = await pipeline('image-classification', 'model', { dtype: 'fp32' });
    status.textContent = 'Choose a photograph.';
    photograph.disabled = false;
    photograph.addEventListener('change', async () => {
        const [file] = photograph.files;
        if (!file) return;
        const url = URL.createObjectURL(file);
        shown.src = url;
        shown.hidden = false;
        answers.replaceChildren();
        status.textContent = 'Classifying …';
        try {
            const start = performance.now();
            const image = await RawImage.read(url);
            const grey = classify.model.config.num_channels === 1;
            const results = await classify(grey ? image.grayscale() : image, { top_k: 5 });
            for (const { label, score } of results) {
                const row = answers.insertRow();
                row.insertCell().textContent = label;
                row.insertCell().textContent = `${(100 * score).toFixed(1)} %`;
                row.dataset.score = score;
            }
            status.textContent = `${Math.round(performance.now() - start)} ms`;
        } catch (error) {
            status.textContent = `It cannot be classified: ${error.message}`;
        }
    });
} catch (error) {
    status.textContent = `The model cannot be loaded; is the exported folder here, as model/? ${error.message}`;
}
