// Windows: no spec without a window gets this file.
#pragma once
