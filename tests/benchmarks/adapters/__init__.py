"""Who runs a subject: one module each, and none of them imports another's packages.

A contender has `prepare(place)`, which makes its own files below `place` where they are not there yet, and
`load(place)`, which gives something with a method a kind of case:

    images(pixels)              a forward pass of a ViT, to logits; with `channels_last`, of such pixels
    texts(ids, mask, segments)  a forward pass of a BERT, to its hidden states
    tokens(ids, count)          greedy tokens after `ids`, an iterator that ends after `count`
    outside(ids, count)         seconds of a token that are not the graph's
    step(x, y)                  a step of training, to its loss before the step
    export()                    seconds and figures of an export, which is removed again
    run()                       a matrix multiply or a read of memory, of `billions` operations or bytes
    serve()                     seconds of a request by many clients

Where `load` would import something lazily, `imports(place)` does so before, which is timed as an import.
Each gives NumPy arrays or plain numbers: a result that is still being computed is not one.
"""
