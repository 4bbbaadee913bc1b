"""Who runs a subject: one module each, and none of them imports another's packages.

A contender has `prepare(place)`, which makes its own files below `place` where they are not there yet, and
`load(place)`, which gives something with a method a case:

    images(pixels)              a forward pass of a ViT, to logits
    texts(ids, mask, segments)  a forward pass of a BERT, to its hidden states
    tokens(ids, count)          greedy tokens after `ids`, an iterator that ends after `count`

Each gives NumPy arrays or plain numbers: a result that is still being computed is not one.
"""
