"""A text of three subjects: rain, a bank, a kitchen."""

from __future__ import annotations

RAIN = (
    "Rain fell on the hills all morning. Dark clouds hid the sun for hours. The storm brought thunder and lightning. "
    "Meteorologists expect more showers tomorrow. Strong winds will blow from the west. "
    "Temperatures should drop below freezing at night. "
)


BANK = (
    "The bank raised its interest rates again. Loans became expensive for small companies. Investors sold their "
    "shares and bought bonds. The stock market lost five percent in a week. Economists fear a recession next year. "
)


COOK = (
    "Heat the butter in a large pan. Chop the onions and the garlic finely. Fry them gently until they are golden. "
    "Add the flour and stir in the milk. Season the sauce with salt and pepper. Bake the lasagne for an hour."
)


TEXT = RAIN + BANK + COOK
