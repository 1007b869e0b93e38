"""Rules VT690 to VT694: boxes and points in the text of rows."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="boxes-of-another-convention",
        code="VT690",
        summary="Boxes are in another unit than the model has learnt, or than a setting says.",
        why=(
            "The loss falls all the same: the model learns a second meaning of numbers it knows,"
            " and boxes are off by a factor. Qwen2.5-VL has learnt pixels of the resized image, and"
            " Qwen2-VL, Qwen3-VL and GLM-4V thousandths of its width and height."
        ),
        bad="Qwen3-VL, and boxes up to [620, 470] in every image of 640 × 480",
        good="the same boxes up to [969, 979], and so in an image of any size",
        fix=(
            "Rescale them with data.coordinates, whose `from` is what the rows are in. If it is"
            " meant, say so with `from` and `to` alike."
        ),
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="boxes-mix-conventions",
        code="VT691",
        summary="Boxes of a split are in several units.",
        why="The same numbers mean two places, and no model can tell which is meant.",
        bad="a file in pixels, to which one in thousandths was appended",
        good="one unit for all rows, that of the model",
        fix="Convert the rows that are named. `vtool verify --html` draws boxes on the images.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="boxes-leave-picture",
        code="VT692",
        summary="Boxes or points lie beyond their image.",
        why=(
            "Nothing is there. Often the image was resized or cropped after it was labelled, or the"
            " row names another one."
        ),
        bad="a box up to x = 1,900 in an image that is 1,280 pixels wide",
        good="boxes within the size of their image",
        fix="Look at the rows that are named, and label them anew, or remove them.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="boxes-inverted",
        code="VT693",
        summary="Boxes have their second corner left of or above the first, or no area.",
        why="It is no box to who reads [x1, y1, x2, y2]: width and height, or y first, look so.",
        bad="[300, 200, 40, 30], which is x, y, width and height",
        good="[300, 200, 340, 230]",
        fix="Write x1, y1, x2, y2 with x1 < x2 and y1 < y2.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="coordinates-not-rescaled",
        code="VT694",
        summary="data.coordinates cannot be applied to a row.",
        why="Left as it is, the row would be in another unit than all others.",
        bad="a row with boxes and two images of different sizes, which no box names",
        good="a row with one image, or with images of one size",
        fix="Write its boxes in the unit of data.coordinates.from, or remove the row.",
        stage="row",
    ),
)
