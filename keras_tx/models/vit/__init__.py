"""ViT, DeiT, DINO and DINOv2."""
