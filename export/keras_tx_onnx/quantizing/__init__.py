"""Files of lower precision, made of the fp32 file of a folder."""
