"""Disk to Dataset: class folders, tables, mask folders, COCO, Pascal VOC, YOLO."""
